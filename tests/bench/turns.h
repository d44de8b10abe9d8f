#pragma once

#include <vector>

namespace centroid::bench {

/// The median of ratios of pairs that were measured in turns, and an interval that contains the
/// true median with 95 % confidence, whatever the distribution.
struct PairedRatio {
  double median = 0, low = 0, high = 0;
};

/// The interval is by order statistics, as in paired.py. At least 6 ratios.
PairedRatio paired_ratio(std::vector<double> ratios);

}  // namespace centroid::bench
