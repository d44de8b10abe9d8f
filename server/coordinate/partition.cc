#include "server/coordinate/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace centroid::server {

std::vector<std::uint64_t> partition(std::uint64_t total, std::span<const double> weights) {
  const std::size_t count = weights.size();
  std::vector<std::uint64_t> parts(count);
  if (count == 0) return parts;
  const auto is_bad = [](double w) { return !std::isfinite(w) || w < 0; };
  const double largest = *std::ranges::max_element(weights);
  const bool is_equal = std::ranges::any_of(weights, is_bad) || largest == 0;
  std::vector<double> scaled(count, 1.0);  // at most 1, so that their sum is finite
  if (!is_equal)
    std::ranges::transform(weights, scaled.begin(), [=](double w) { return w / largest; });
  const double sum = std::accumulate(scaled.begin(), scaled.end(), 0.0);
  std::vector<double> fraction(count);
  std::uint64_t given = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double exact = static_cast<double>(total) * (scaled[i] / sum);
    // Rounding must not give more than there is.
    parts[i] = std::min(static_cast<std::uint64_t>(std::floor(exact)), total - given);
    fraction[i] = scaled[i] > 0 ? exact - static_cast<double>(parts[i]) : -1;
    given += parts[i];
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Fractions that differ by rounding only are equal.
  const auto key = [&](std::size_t i) { return std::round(fraction[i] * 1e6); };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
  for (std::size_t i = 0; given < total; i = (i + 1) % count, ++given) ++parts[order[i]];
  return parts;
}

}  // namespace centroid::server
