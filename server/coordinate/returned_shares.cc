#include "server/coordinate/returned_shares.h"

#include <algorithm>

namespace centroid::server {

DataPart ReturnedShares::take(std::uint64_t samples) {
  if (waiting_.empty() || samples == 0) return {};
  DataPart& first = waiting_.front();
  DataPart part = first;
  part.end = part.begin + std::min(samples, first.samples());
  first.begin = part.end;
  if (first.samples() == 0) waiting_.pop_front();
  taken_.push_back(part);
  return part;
}

void ReturnedShares::lost(const DataPart& part) {
  if (part.samples() > 0) lost_.push_back(part);
}

void ReturnedShares::commit() {
  for (const DataPart& part : lost_) {
    waiting_.push_back(part);
    returned_ += part.samples();
  }
  lost_.clear();
  taken_.clear();
}

void ReturnedShares::give_up() {
  waiting_.insert(waiting_.begin(), taken_.begin(), taken_.end());
  lost_.clear();
  taken_.clear();
}

std::uint64_t ReturnedShares::samples() const {
  std::uint64_t sum = 0;
  for (const DataPart& part : waiting_) sum += part.samples();
  return sum;
}

Overshoot::Overshoot(std::uint64_t batches)
    : steps_(std::clamp<std::uint64_t>(batches / 100, 2, 5)),
      most_(std::clamp<std::uint64_t>(batches / 50, 3, 10)) {}

Overshoot Overshoot::fixed(std::uint64_t steps) { return {steps, steps}; }

}  // namespace centroid::server
