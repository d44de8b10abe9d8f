#include "worker/loop/epoch_order.h"

#include <algorithm>

#include "worker/data/data_source.h"

namespace centroid::worker {

std::span<const std::uint64_t> EpochOrder::part(std::uint64_t samples, const Share& share) {
  if (last_ && last_->epoch == share.epoch && share.begin > last_->begin)
    stride_ = share.begin - last_->begin;
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

std::vector<std::span<const std::uint64_t>> EpochOrder::next(const Share& share) const {
  const std::uint64_t begin = share.begin + stride_;
  if (stride_ == 0 || begin >= order_.size()) return {};
  return {std::span(order_).subspan(begin, std::min(share.samples(), order_.size() - begin))};
}

void EpochOrder::load(std::uint64_t samples, std::uint64_t seed, std::uint64_t epoch) {
  if (key_ && key_->first == seed && key_->second == epoch) return;
  order_ = permutation(samples, seed, epoch);
  key_.emplace(seed, epoch);
}

}  // namespace centroid::worker
