#include "worker/node/device_residual.h"

#if defined(CENTROID_HAS_CUDA)
#include "common/codec/cuda/device_residual.h"
#endif

namespace centroid::worker {

Result<std::unique_ptr<DeviceResidual>> residual_on_device(
    [[maybe_unused]] ReplicaGroup& group, [[maybe_unused]] const std::string& codec,
    [[maybe_unused]] const ChunkPlan& plan) {
#if defined(CENTROID_HAS_CUDA)
  const Replica::OnDevice at = group.device_gradient();
  if (at.device != nullptr) {
    CENTROID_ASSIGN(auto residual, make_device_residual(codec, plan, at.gradient, *at.device));
    group.keep_gradient_on_device();
    return residual;
  }
#endif
  return Error(ErrorCode::kUnimplemented, "no device has the whole gradient");
}

}  // namespace centroid::worker
