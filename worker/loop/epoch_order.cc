#include "worker/loop/epoch_order.h"

#include <algorithm>
#include <utility>

#include "common/base/permutation.h"

namespace centroid::worker {

std::span<const std::uint64_t> EpochOrder::part(std::uint64_t samples, const Share& share) {
  if (last_ && last_->epoch == share.epoch && share.begin > last_->begin)
    before_ = std::exchange(stride_, share.begin - last_->begin);
  else if (last_ && last_->epoch != share.epoch && before_ > 0)
    stride_ = before_;  // the last part of an epoch is what was left
  last_ = share;
  if (share.end <= samples) {
    load(samples, share.seed, share.epoch);
    return std::span(order_).subspan(share.begin, share.samples());
  }
  // It runs into the next epoch.
  joined_.clear();
  for (std::uint64_t at = share.begin; at < share.end;) {
    const std::uint64_t past = at / samples, first = at % samples;
    load(samples, share.seed, share.epoch + past);
    const std::uint64_t count = std::min(share.end - at, samples - first);
    const auto from = order_.begin() + static_cast<std::ptrdiff_t>(first);
    joined_.insert(joined_.end(), from, from + static_cast<std::ptrdiff_t>(count));
    at += count;
  }
  return joined_;
}

std::vector<std::span<const std::uint64_t>> EpochOrder::next(const Share& share,
                                                             std::uint64_t most) const {
  std::vector<std::span<const std::uint64_t>> parts;
  if (stride_ == 0 || share.samples() == 0) return parts;
  for (std::uint64_t at = share.begin + stride_; at < order_.size() && parts.size() < most;
       at += stride_)
    parts.push_back(std::span(order_).subspan(at, std::min(share.samples(), order_.size() - at)));
  return parts;
}

void EpochOrder::load(std::uint64_t samples, std::uint64_t seed, std::uint64_t epoch) {
  if (key_ && key_->first == seed && key_->second == epoch) return;
  order_ = permutation(samples, seed, epoch);
  key_.emplace(seed, epoch);
}

}  // namespace centroid::worker
