#pragma once

#include <cmath>
#include <cstdint>

namespace centroid::server {

/// Of how many steps a contribution tells, where the last ones of a share are made behind it. Pure.
///
/// steps   of the share; a part of one counts as such
class ReportedSteps {
 public:
  /// `is_next`: what was made behind the contribution before goes into this one.
  double contributed(double steps, std::uint64_t overlap, bool is_next) {
    const double pieces = std::ceil(steps),  // of the same size
        behind = pieces > 1 ? std::fmin(static_cast<double>(overlap), pieces - 1) : 0;
    const double before = is_next ? behind_ : 0;
    behind_ = pieces > 0 ? steps * behind / pieces : 0;
    return before + steps - behind_;
  }

 private:
  double behind_ = 0;
};

}  // namespace centroid::server
