#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/codec/error_feedback.h"
#include "common/device/device.h"

namespace centroid {

/// The residual of an ErrorFeedback on the device where the gradient is (all tensors end to end,
/// complete before a unit is begun, unchanged until its chunks are encoded).
///
/// owns    4.25 bytes per number on the device, 8.25 with momentum; pinned memory for what is sent
/// fails   as DeviceCodec::make
Result<std::unique_ptr<DeviceResidual>> make_device_residual(const std::string& spec,
                                                             std::uint64_t elements,
                                                             const float* gradient, Device& device);

}  // namespace centroid
