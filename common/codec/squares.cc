#include "common/codec/squares.h"

#include <cmath>
#include <limits>

#include "common/tensor/squares.h"

namespace centroid {

double squares_of(const Codec& codec, Bytes payload, std::span<float> scratch) {
  const auto sparse = codec.sparse(payload, scratch.size());
  if (sparse.ok() && *sparse) return squares_of((*sparse)->value);
  if (!sparse.ok() || !codec.decode(payload, scratch).ok())
    return std::numeric_limits<double>::quiet_NaN();
  return squares_of(scratch);
}

bool is_norm_of(double norm, double squares) {
  constexpr double kTolerance = 1e-3;
  const double found = std::sqrt(squares);
  return std::abs(norm - found) <= kTolerance * found;
}

}  // namespace centroid
