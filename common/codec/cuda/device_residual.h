#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/codec/error_feedback.h"
#include "common/device/device.h"
#include "common/tensor/chunk_plan.h"

namespace centroid {

/// The residual of an ErrorFeedback on the device of the gradient (all tensors end to end, complete
/// before a unit begins, unchanged until its chunks are encoded).
///
/// owns    8 bytes per number on the device, 16 with momentum, and 0.25 of the largest unit; pinned
///         memory for the sent numbers of that unit. All is allocated at the start
/// fails   as DeviceCodec::make
Result<std::unique_ptr<DeviceResidual>> make_device_residual(const std::string& spec,
                                                             const ChunkPlan& plan,
                                                             const float* gradient, Device& device);

}  // namespace centroid
