#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace centroid {

/// Estimates how far another machine's clock is ahead, from its heartbeats. Each observation is too
/// small by the transfer time, so the largest of the last ones is the best. Pure.
class ClockWatch {
 public:
  /// A heartbeat arrived at `ours`, sent when the other clock was at `theirs`; seconds.
  void heard(double theirs, double ours) { seen_[count_++ % seen_.size()] = theirs - ours; }
  /// Seconds; NaN before the first heartbeat.
  double ahead() const {
    const auto end = seen_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, seen_.size()));
    if (end == seen_.begin()) return std::numeric_limits<double>::quiet_NaN();
    return *std::max_element(seen_.begin(), end);
  }

 private:
  std::array<double, 8> seen_{};
  std::size_t count_ = 0;
};

}  // namespace centroid
