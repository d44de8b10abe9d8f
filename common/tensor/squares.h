#pragma once

#include <cmath>
#include <span>

namespace centroid {

/// Sum of the squares, in double: no possible number of floats overflows it, and it is finite
/// exactly if all of them are. (If bits count: common/optim/norm.h.)
double squares_of(std::span<const float> values);

/// Whether a norm is the root of `squares`, within a thousandth: both sides add in their own order,
/// and another client may add in float32.
inline bool is_norm_of(double norm, double squares) {
  constexpr double kTolerance = 1e-3;
  const double found = std::sqrt(squares);
  return std::abs(norm - found) <= kTolerance * found;
}

}  // namespace centroid
