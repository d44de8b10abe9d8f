#include "worker/loop/local_planes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <new>
#include <utility>

#include "common/optim/norm.h"

namespace centroid::worker {

Status LocalPlanes::open(const ChunkPlan& plan, std::uint32_t fragments, std::span<float> params,
                         Buffer own) {
  plan_ = plan;
  global_ = params;
  CENTROID_ASSIGN(fragments_, FragmentPlan::make(plan_, fragments));
  own_memory_ = std::move(own);
  delta_memory_ = Buffer(params.size_bytes());
  if (fragments > 1) sent_memory_ = Buffer(params.size_bytes());
  own_ = own_memory_.as<float>();
  delta_ = delta_memory_.as<float>();
  sent_ = sent_memory_.as<float>();
  return {};
}

std::span<float> LocalPlanes::part(std::span<float> plane, TensorId tensor) const {
  return plane.subspan(plan_.position_of(tensor), plan_.manifest()[tensor.value].elements());
}

Status LocalPlanes::keep_sent() {
  if (!sent_.empty()) return {};
  try {
    sent_memory_ = Buffer(global_.size_bytes());
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for steps behind a contribution: a copy of it, " +
                     std::to_string(global_.size_bytes()) + " bytes");
  }
  sent_ = sent_memory_.as<float>();
  return {};
}

void LocalPlanes::restart() { std::ranges::copy(global_, own_.begin()); }

void LocalPlanes::contribute(const Share& share) {
  for (const TensorId tensor : tensors(share)) {
    const std::span<const float> global = part(global_, tensor), own = part(own_, tensor);
    std::ranges::transform(global, own, part(delta_, tensor).begin(), std::minus<>());
    if (!sent_.empty())  // an empty share gives nothing: all it has learned is kept
      std::ranges::copy(share.samples() > 0 ? own : global, part(sent_, tensor).begin());
  }
}

void LocalPlanes::merge(const Share& share) {
  if (sent_.empty()) return restart();
  for (const TensorId tensor : tensors(share)) {
    const std::span<const float> global = part(global_, tensor), sent = part(sent_, tensor);
    const std::span<float> own = part(own_, tensor);
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = global[i] + (own[i] - sent[i]);
  }
}

Divergence LocalPlanes::divergence(const Share& share) const {
  if (share.samples() == 0) return {};
  PlaneNorm apart, norm, own;
  std::array<float, 1024> block;
  for (const TensorId tensor : tensors(share)) {
    if (is_buffer(plan_.manifest()[tensor.value])) continue;
    const std::span<const float> after = part(global_, tensor),
                                 before = part(sent_.empty() ? own_ : sent_, tensor);
    const std::uint64_t position = plan_.position_of(tensor);
    norm.add(position, after);
    own.add(position, before);
    for (std::size_t i = 0; i < after.size(); i += block.size()) {
      const std::size_t n = std::min(block.size(), after.size() - i);
      std::ranges::transform(before.subspan(i, n), after.subspan(i, n), block.begin(),
                             std::minus<>());
      apart.add(position + i, std::span(block).first(n));
    }
  }
  const double after = norm.value(), before = own.value(), distance = apart.value();
  if (after <= 1e-10) return {};
  constexpr double kFar = 1e300;  // stands for what is not finite
  Divergence out;
  out.ratio = std::isfinite(distance / after) ? distance / after : kFar;
  out.shift = before - after;
  const double twice = 2 * before * after;
  if (twice > 0)
    out.cosine =
        std::clamp((before * before + after * after - distance * distance) / twice, -1.0, 1.0);
  return out;
}

}  // namespace centroid::worker
