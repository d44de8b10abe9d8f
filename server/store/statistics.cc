#include "server/store/statistics.h"

#include <algorithm>
#include <cmath>

namespace centroid::server {

namespace {
constexpr std::size_t kBlock = 4096;
}

void StatisticsSum::add(std::span<const float> values) {
  while (!values.empty()) {
    const auto block = values.first(std::min(kBlock, values.size()));
    values = values.subspan(block.size());
    elements_ += block.size();
    std::uint64_t count = 0;
    double sum = 0, low = 0, high = 0;
    for (const float value : block) {
      if (!std::isfinite(value)) continue;
      const double x = value;
      low = count == 0 ? x : std::min(low, x);
      high = count == 0 ? x : std::max(high, x);
      sum += x;
      ++count;
    }
    nonfinite_ += block.size() - count;
    if (count == 0) continue;
    const double mean = sum / static_cast<double>(count);
    double squares = 0;
    for (const float value : block)
      if (std::isfinite(value)) squares += (value - mean) * (value - mean);
    const auto before = static_cast<double>(elements_ - nonfinite_ - count);
    const auto added = static_cast<double>(count);
    const double distance = mean - mean_, total = before + added;
    min_ = before == 0 ? low : std::min(min_, low);
    max_ = before == 0 ? high : std::max(max_, high);
    squares_ += squares + distance * distance * before * added / total;
    mean_ += distance * added / total;
  }
}

TensorStatistics StatisticsSum::result() const {
  TensorStatistics out;
  out.elements = elements_;
  out.nonfinite = nonfinite_;
  const auto count = static_cast<double>(elements_ - nonfinite_);
  if (count == 0) return out;
  out.min = min_;
  out.max = max_;
  out.mean = mean_;
  out.deviation = std::sqrt(squares_ / count);
  out.norm = std::sqrt(squares_ + count * mean_ * mean_);
  return out;
}

}  // namespace centroid::server
