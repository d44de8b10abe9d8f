#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace centroid::server {

/// For each row of numbers the rows that are nearest to it.
///
/// distance  Euclidean, in double: finite for all finite numbers
/// order     what is found depends neither on the order of the rows nor on the machine; of rows at
///           the same distance the one with the smaller numbers is nearer
/// cost      n^2 / 2 passes over rows in the cache; n^2 numbers of memory
/// thread    one at a time
class Neighbours {
 public:
  /// Find the `count` nearest of each row, itself among them. Rows of `elements` finite numbers.
  void find(std::span<const float* const> rows, std::size_t elements, std::size_t count);

  std::span<const float* const> rows() const { return rows_; }  ///< in an order of their numbers
  /// Indexes into `rows`, ascending: `count` of the first row, then of the second, ...
  std::span<const std::uint32_t> nearest() const { return nearest_; }

 private:
  std::vector<const float*> rows_;
  std::vector<double> squares_;  ///< of the distance, by pair
  std::vector<std::uint32_t> order_, nearest_;
};

}  // namespace centroid::server
