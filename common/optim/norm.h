#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace centroid {

/// Euclidean norm of a plane, added chunk by chunk in the plan's order. The bits depend neither on
/// the division of a chunk into pieces nor on the machine: element i of the plane is added, as a
/// square in double, to lane i mod 16; the lanes of a chunk are summed in order, then the chunks.
/// So servers with some of the chunks and a worker with all of them agree.
class PlaneNorm {
 public:
  /// The elements from `position` of the plane on; pieces in the order of their positions.
  void add(std::uint64_t position, std::span<const float> values);
  /// The same for a piece that is 0 except the `values` at `position` + index, ascending.
  void add(std::uint64_t position, std::span<const std::uint32_t> index,
           std::span<const float> values);
  /// Complete the chunk; returns its sum of squares.
  double end_chunk();
  /// Add a chunk that was summed elsewhere.
  void add_chunk(double squares) { sum_ += squares; }
  double value() const;  ///< of all elements so far

 private:
  static constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> lanes_{};
  double sum_ = 0;
};

/// Sum of the squares of a plane on one machine, in an order that gives the same bits on a GPU
/// (common/optim/cuda).
///
/// order   number i of a block of 4096 is added, as a square in double, to sum i mod 128; these are
///         added by halves (0 += 64, 1 += 65, ...; then 0 += 32, ...). Block b is added to total b
///         mod 256, and these by halves
double sum_of_squares(std::span<const float> plane);

/// Factor that limits a gradient of this norm to `bound`: 1 if the norm is within the bound or not
/// finite, or if `bound` is 0 (no clipping).
float clip_factor(double norm, double bound);

}  // namespace centroid
