#include "tests/bench/turns.h"

#include <algorithm>
#include <cmath>

#include "common/base/result.h"

namespace centroid::bench {

PairedRatio paired_ratio(std::vector<double> ratios) {
  constexpr double kOutside = 0.05;
  std::ranges::sort(ratios);
  const std::size_t n = ratios.size();
  // The k-th from each end, with the largest k for which the median is outside rarely enough.
  std::size_t k = 0;
  double term = std::exp2(-static_cast<double>(n)), sum = term;  // binomial(n, k) / 2^n
  while (k < n / 2 && 2 * sum <= kOutside) {
    ++k;
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
    sum += term;
  }
  CENTROID_CHECK(k > 0);
  const double median = n % 2 == 1 ? ratios[n / 2] : (ratios[n / 2 - 1] + ratios[n / 2]) / 2;
  return {.median = median, .low = ratios[k - 1], .high = ratios[n - k]};
}

}  // namespace centroid::bench
