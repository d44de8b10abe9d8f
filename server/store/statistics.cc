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
    StatisticsPart part;
    part.elements = block.size();
    std::uint64_t count = 0;
    double sum = 0;
    for (const float value : block) {
      if (!std::isfinite(value)) continue;
      const double x = value;
      part.min = count == 0 ? x : std::min(part.min, x);
      part.max = count == 0 ? x : std::max(part.max, x);
      sum += x;
      ++count;
    }
    part.nonfinite = block.size() - count;
    if (count > 0) part.mean = sum / static_cast<double>(count);
    for (const float value : block)
      if (std::isfinite(value)) part.squares += (value - part.mean) * (value - part.mean);
    add(part);
  }
}

void StatisticsSum::add(const StatisticsPart& part) {
  const auto before = static_cast<double>(sum_.elements - sum_.nonfinite);
  const auto added = static_cast<double>(part.elements - part.nonfinite);
  sum_.elements += part.elements;
  sum_.nonfinite += part.nonfinite;
  if (added == 0) return;
  const double distance = part.mean - sum_.mean, total = before + added;
  sum_.min = before == 0 ? part.min : std::min(sum_.min, part.min);
  sum_.max = before == 0 ? part.max : std::max(sum_.max, part.max);
  sum_.squares += part.squares + distance * distance * before * added / total;
  sum_.mean += distance * added / total;
}

TensorStatistics StatisticsSum::result() const {
  TensorStatistics out;
  out.elements = sum_.elements;
  out.nonfinite = sum_.nonfinite;
  const auto count = static_cast<double>(sum_.elements - sum_.nonfinite);
  if (count == 0) return out;
  out.min = sum_.min;
  out.max = sum_.max;
  out.mean = sum_.mean;
  out.deviation = std::sqrt(sum_.squares / count);
  out.norm = std::sqrt(sum_.squares + count * sum_.mean * sum_.mean);
  return out;
}

}  // namespace centroid::server
