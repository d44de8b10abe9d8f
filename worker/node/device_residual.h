#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/codec/error_feedback.h"
#include "common/tensor/chunk_plan.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {

/// A codec's residual on the device of the group's gradient, for ExchangeMemory::device_residual.
/// The gradient then stays on the device. The group outlives it.
/// fails  as make_device_residual; unimplemented: built without CUDA, or no device has the gradient
Result<std::unique_ptr<DeviceResidual>> residual_on_device(ReplicaGroup& group,
                                                           const std::string& codec,
                                                           const ChunkPlan& plan);

}  // namespace centroid::worker
