#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace centroid::server {

/// For each row of numbers the rows that are nearest to it.
///
/// distance  Euclidean, in double, of differences: finite for all finite numbers, and exact also
///           where rows differ little, which |x|^2 + |y|^2 - 2xy would not be
/// order     what is found depends neither on the order of the rows nor on the machine; of rows at
///           the same distance the one with the smaller numbers is nearer
/// cost      n^2 / 2 passes over rows in the cache; n^2 numbers of memory
/// thread    one at a time
class Neighbours {
 public:
  /// Find the `count` nearest of each row, itself among them. Rows of `elements` finite numbers.
  /// False: another thread set `is_over`, and nothing is found.
  bool find(std::span<const float* const> rows, std::size_t elements, std::size_t count,
            const std::atomic<bool>& is_over);

  std::span<const float* const> rows() const { return rows_; }  ///< in an order of their numbers
  /// Indexes into `rows`, ascending: of those that are near every row. Mostly these are nearly all,
  /// for what is far from one row is far from others.
  std::span<const std::uint32_t> shared() const { return shared_; }
  /// The others that are near this row.
  std::span<const std::uint32_t> others(std::size_t row) const {
    return std::span(others_).subspan(row * others_count_, others_count_);
  }

 private:
  std::vector<const float*> rows_;
  std::vector<double> block_;    ///< some numbers of each row
  std::vector<double> squares_;  ///< of the distance, by pair
  std::vector<std::uint32_t> order_, nearest_, near_to_, shared_, others_;
  std::size_t others_count_ = 0;  ///< of each row
};

}  // namespace centroid::server
