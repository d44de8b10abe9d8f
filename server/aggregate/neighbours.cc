#include "server/aggregate/neighbours.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/tensor/multiversion.h"
#include "server/aggregate/ordered.h"

namespace centroid::server {
namespace {

constexpr std::size_t kColumns = 256;  // numbers of each row that stay in the cache for all pairs
constexpr std::size_t kLanes = 8;
constexpr std::size_t kTogether =
    4;  // rows whose pairs are computed together: each load serves four

/// Add to the squares of `kRows` rows from `r` with as many from `s`. The order of a pair's sum
/// does not depend on kRows.
template <std::size_t kRows>
[[gnu::always_inline]] inline void add_pairs(const double* block, std::size_t count, std::size_t r,
                                             std::size_t s, double* squares) {
  double sum[kRows][kRows][kLanes] = {};
  const double* const x = block + r * kColumns;
  const double* const y = block + s * kColumns;
  for (std::size_t i = 0; i < kColumns; i += kLanes)
    for (std::size_t a = 0; a < kRows; ++a)
      for (std::size_t b = 0; b < kRows; ++b) {
        CENTROID_INDEPENDENT
        for (std::size_t l = 0; l < kLanes; ++l) {
          const double d = x[a * kColumns + i + l] - y[b * kColumns + i + l];
          sum[a][b][l] += d * d;
        }
      }
  for (std::size_t a = 0; a < kRows; ++a)
    for (std::size_t b = 0; b < kRows; ++b) {
      double total = 0;
      for (const double lane : sum[a][b]) total += lane;
      squares[(r + a) * count + s + b] += total;
    }
}

struct Distances {
  CENTROID_KERNEL void run(const float* const* rows, std::size_t count, std::size_t at,
                           std::size_t width, double* block, double* squares) {
    for (std::size_t r = 0; r < count; ++r) {
      double* const to = block + r * kColumns;
      std::copy_n(rows[r] + at, width, to);
      std::fill(to + width, to + kColumns, 0.0);
    }
    for (std::size_t r = 0; r < count; r += kTogether)
      for (std::size_t s = 0; s <= r; s += kTogether) {
        if (s < r && r + kTogether <= count) {
          add_pairs<kTogether>(block, count, r, s, squares);
          continue;
        }
        for (std::size_t a = r; a < std::min(r + kTogether, count); ++a)
          for (std::size_t b = s; b < std::min(s + kTogether, a); ++b)
            add_pairs<1>(block, count, a, b, squares);
      }
  }
};

}  // namespace

bool Neighbours::find(std::span<const float* const> rows, std::size_t elements, std::size_t count,
                      const std::atomic<bool>& is_over) {
  const std::size_t n = rows.size();
  rows_.assign(rows.begin(), rows.end());
  std::ranges::sort(rows_, [elements](const float* a, const float* b) {
    return std::lexicographical_compare(a, a + elements, b, b + elements, [](float x, float y) {
      return ordered_bits(x) < ordered_bits(y);
    });
  });
  squares_.assign(n * n, 0);
  block_.resize(n * kColumns);
  for (std::size_t at = 0; at < elements; at += kColumns) {
    if (is_over) return false;
    run_multiversioned<Distances>(rows_.data(), n, at, std::min(kColumns, elements - at),
                                  block_.data(), squares_.data());
  }
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t s = r + 1; s < n; ++s) squares_[r * n + s] = squares_[s * n + r];
  order_.resize(n);
  nearest_.clear();
  nearest_.reserve(n * count);
  near_to_.assign(n, 0);
  for (std::size_t r = 0; r < n; ++r) {
    const auto own = std::span(squares_).subspan(r * n, n);
    std::iota(order_.begin(), order_.end(), 0u);
    std::ranges::stable_sort(order_, {}, [&](std::uint32_t s) { return own[s]; });
    const auto nearest = std::span(order_).first(count);
    std::ranges::sort(nearest);
    nearest_.insert(nearest_.end(), nearest.begin(), nearest.end());
    for (const std::uint32_t s : nearest) ++near_to_[s];
  }
  const auto is_shared = [&](std::uint32_t s) { return near_to_[s] == n; };
  shared_.clear();
  for (std::uint32_t s = 0; s < n; ++s)
    if (is_shared(s)) shared_.push_back(s);
  others_count_ = count - shared_.size();
  others_.clear();
  others_.reserve(n * others_count_);
  std::ranges::remove_copy_if(nearest_, std::back_inserter(others_), is_shared);
  return true;
}

}  // namespace centroid::server
