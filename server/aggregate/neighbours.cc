#include "server/aggregate/neighbours.h"

#include <algorithm>
#include <numeric>

#include "common/tensor/multiversion.h"
#include "server/aggregate/ordered.h"

namespace centroid::server {
namespace {

constexpr std::size_t kBlock = 1024;  // numbers of each row that stay in the cache for all pairs
constexpr std::size_t kLanes = 16;

struct Distances {
  CENTROID_KERNEL void run(const float* const* rows, std::size_t count, std::size_t at,
                           std::size_t width, double* squares) {
    for (std::size_t r = 1; r < count; ++r)
      for (std::size_t s = 0; s < r; ++s) {
        const float* const x = rows[r] + at;
        const float* const y = rows[s] + at;
        double sum[kLanes] = {};
        std::size_t i = 0;
        for (; i + kLanes <= width; i += kLanes) {
          CENTROID_INDEPENDENT
          for (std::size_t l = 0; l < kLanes; ++l) {
            const double d = static_cast<double>(x[i + l]) - static_cast<double>(y[i + l]);
            sum[l] += d * d;
          }
        }
        for (std::size_t l = 0; i < width; ++i, ++l) {
          const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
          sum[l] += d * d;
        }
        double total = 0;
        for (const double lane : sum) total += lane;
        squares[r * count + s] += total;
      }
  }
};

}  // namespace

void Neighbours::find(std::span<const float* const> rows, std::size_t elements, std::size_t count) {
  const std::size_t n = rows.size();
  rows_.assign(rows.begin(), rows.end());
  std::ranges::sort(rows_, [elements](const float* a, const float* b) {
    return std::lexicographical_compare(a, a + elements, b, b + elements, [](float x, float y) {
      return ordered_bits(x) < ordered_bits(y);
    });
  });
  squares_.assign(n * n, 0);
  for (std::size_t at = 0; at < elements; at += kBlock)
    run_multiversioned<Distances>(rows_.data(), n, at, std::min(kBlock, elements - at),
                                  squares_.data());
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t s = r + 1; s < n; ++s) squares_[r * n + s] = squares_[s * n + r];
  order_.resize(n);
  nearest_.clear();
  for (std::size_t r = 0; r < n; ++r) {
    const auto own = std::span(squares_).subspan(r * n, n);
    std::iota(order_.begin(), order_.end(), 0u);
    std::ranges::stable_sort(order_, {}, [&](std::uint32_t s) { return own[s]; });
    const auto nearest = std::span(order_).first(count);
    std::ranges::sort(nearest);
    nearest_.insert(nearest_.end(), nearest.begin(), nearest.end());
  }
}

}  // namespace centroid::server
