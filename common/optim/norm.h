#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace centroid {

/// Euclidean norm of a plane, given in pieces. The bits do not depend on how it is cut, nor on the
/// machine: element i of the plane is added, as a square in double, to lane i mod 16, and the lanes
/// at last in order. So a server that looks at chunks and a worker that has the whole agree.
class PlaneNorm {
 public:
  /// The elements from `position` of the plane on; pieces in the order of their positions.
  void add(std::uint64_t position, std::span<const float> values);
  /// The same of a piece that is 0 but for the `values` at `position` + index, ascending.
  void add(std::uint64_t position, std::span<const std::uint32_t> index,
           std::span<const float> values);
  double value() const;

 private:
  static constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> lanes_{};
};

/// What a gradient of this norm is multiplied with so that its norm is at most `bound`: 1 when it
/// is already, when `bound` is 0 (no clipping), and when the norm is not finite.
float clip_factor(double norm, double bound);

}  // namespace centroid
