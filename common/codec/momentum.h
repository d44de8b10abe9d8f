#pragma once

#include "common/codec/topk_kernels.h"

namespace centroid {

/// Momentum correction of one number: the increment of the residual, and the new momentum, which
/// keeps its value if the next is not finite. For CPU loops and CUDA kernels.
/// source  Lin et al. 2018, "Deep Gradient Compression", section 3.1
struct MomentumStep {
  float gained, momentum;
};
constexpr MomentumStep momentum_step(float g, float u, float momentum, bool nesterov) {
  const float plain = momentum * u + g;
  const float ahead = momentum * (u + g);
  const float next = nesterov ? ahead : plain;
  // The residual's check finds numbers that are not finite.
  return {nesterov ? next + g : next, topk::key_of(next) < topk::kInfinity ? next : u};
}

}  // namespace centroid
