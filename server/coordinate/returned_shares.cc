#include "server/coordinate/returned_shares.h"

#include <algorithm>
#include <charconv>

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

void ReturnedShares::give_back(const DataPart& part) {
  if (part.samples() == 0) return;
  waiting_.push_back(part);
  returned_ += part.samples();
}

void ReturnedShares::commit() {
  for (const DataPart& part : lost_) give_back(part);
  lost_.clear();
  taken_.clear();
}

void ReturnedShares::give_up() {
  waiting_.insert(waiting_.begin(), taken_.begin(), taken_.end());
  lost_.clear();
  taken_.clear();
}

std::string ReturnedShares::to_text() const {
  std::string out;
  for (const DataPart& part : waiting_) {
    if (!out.empty()) out += ',';
    out += std::to_string(part.epoch) + ':' + std::to_string(part.begin);
    out += '-' + std::to_string(part.end);
  }
  return out;
}

void ReturnedShares::restore(const std::string& text) {
  clear();
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](std::uint64_t& value, char behind) {
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || (stop == end ? behind != ',' : *stop != behind)) return false;
    at = stop == end ? end : stop + 1;
    return true;
  };
  while (at < end) {
    DataPart part;
    if (!number(part.epoch, ':') || !number(part.begin, '-') || !number(part.end, ',')) return;
    if (part.begin < part.end) waiting_.push_back(part);
  }
}

std::uint64_t ReturnedShares::taken() const {
  std::uint64_t sum = 0;
  for (const DataPart& part : taken_) sum += part.samples();
  return sum;
}

std::optional<std::uint64_t> ReturnedShares::oldest_epoch() const {
  std::optional<std::uint64_t> oldest;
  const auto look = [&](const auto& parts) {
    for (const DataPart& part : parts) oldest = std::min(oldest.value_or(part.epoch), part.epoch);
  };
  look(waiting_), look(taken_), look(lost_);
  return oldest;
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
