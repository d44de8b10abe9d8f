#pragma once

// Random and adversarial arrays for top-k, and what every selection of them must be.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/codec/topk.h"

namespace centroid::topk_cases {

constexpr int kDistributions = 13;
constexpr int kNonFinite = 12;  // the one with NaN and infinities

inline std::vector<float> numbers(int distribution, std::size_t n, std::uint64_t seed) {
  CounterRng random(seed, static_cast<std::uint64_t>(distribution));
  std::vector<float> x(n);
  const auto index = [](std::size_t i) { return static_cast<float>(i); };
  for (std::size_t i = 0; i < n; ++i) {
    const double uniform = random.uniform();
    float v = 0;
    switch (distribution) {
      case 0:  // normal
        v = static_cast<float>(random.normal() * 1e-3);
        break;
      case 1:  // layers of different scale, heavy tails
        v = static_cast<float>(std::exp(double(i / 1000 % 7)) * std::log(uniform + 1e-12));
        v = random.below(2) != 0 ? v : -v;
        break;
      case 2:  // all equal
        v = 1.5f;
        break;
      case 3:  // ascending
        v = index(i);
        break;
      case 4:  // descending magnitude, negative
        v = -index(n - i);
        break;
      case 5:  // zeros of both signs
        v = random.below(2) != 0 ? 0.0f : -0.0f;
        break;
      case 6:  // nearly all zero
        v = random.below(1000) == 0 ? static_cast<float>(random.below(7)) - 3.0f : 0.0f;
        break;
      case 7:  // five values: ties everywhere
        v = static_cast<float>(random.below(5)) - 2.0f;
        break;
      case 8:  // ties as in bfloat16
        v = std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(random.normal())) &
                                 0xFFFF0000u);
        break;
      case 9:  // one huge row
        v = static_cast<float>(uniform) * (i / 997 == 3 ? 1e6f : 1e-6f);
        break;
      case 10:  // spikes at equal distances, which a regular sample would miss or hit only
        v = i % 64 == 5 ? 100.0f : static_cast<float>(uniform);
        break;
      case 11:  // any finite bits: subnormals, huge numbers
        do v = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
        while (!std::isfinite(v));
        break;
      default:  // not finite here and there
        v = static_cast<float>(random.normal());
        if (random.below(200) == 0) v = std::numeric_limits<float>::infinity();
        if (random.below(200) == 0) v = -std::numeric_limits<float>::infinity();
        if (random.below(200) == 0) v = std::numeric_limits<float>::quiet_NaN();
        break;
    }
    x[i] = v;
  }
  return x;
}

/// All places in the order of the definition: by a stable sort of everything.
inline std::vector<std::uint32_t> order_of(const std::vector<float>& x) {
  std::vector<std::uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return topk::key_of(x[a]) > topk::key_of(x[b]);
  });
  return order;
}

/// What must be selected.
inline std::vector<std::uint32_t> reference(const std::vector<float>& x,
                                            const std::vector<std::uint32_t>& order,
                                            std::uint64_t k) {
  const auto end =
      order.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(k, order.size()));
  std::vector<std::uint32_t> first(order.begin(), end);
  while (!first.empty() && topk::key_of(x[first.back()]) == 0) first.pop_back();
  std::sort(first.begin(), first.end());
  return first;
}

/// How to select: everything that must not change the result.
struct Way {
  const topk::Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
  std::uint64_t seed = 1;
  std::size_t room = 0;
  bool fused = false;
  std::string to_string() const {
    return std::string(kernels->name) + " threads " +
           std::to_string(pool != nullptr ? pool->threads() : 1) + " seed " + std::to_string(seed) +
           " room " + std::to_string(room) + (fused ? " fused" : "");
  }
};

/// Empty when the selection is the reference; else what differs. `residual` and `gradient` add up
/// to x exactly.
inline std::string difference(const std::vector<float>& x, std::uint64_t k,
                              const std::vector<std::uint32_t>& expected, const Way& way) {
  TopkSelector selector(way.pool, way.seed);
  selector.use(way.kernels);
  selector.use_room(way.room);
  TopkSelector::Selection got;
  std::vector<float> residual, gradient;
  if (way.fused) {
    residual.assign(x.size(), 0.0f);
    gradient = x;
    for (std::size_t i = 0; i < x.size(); i += 3) std::swap(residual[i], gradient[i]);
    const std::vector<float> given = residual;
    std::vector<float> before(x.size());
    got = selector.add_and_select(gradient, residual, k, false, before);
    if (before != given) return "the copy of the residual is wrong";
    if (got.nonfinite != 0) return "a sum is taken for not finite";
    for (std::size_t i = 0; i < x.size(); ++i)
      if (residual[i] != x[i]) return "sum " + std::to_string(i) + " is wrong";
  } else {
    got = selector.select(x, k);
  }
  if (got.index.size() != expected.size())
    return std::to_string(got.index.size()) + " instead of " + std::to_string(expected.size());
  for (std::size_t j = 0; j < expected.size(); ++j) {
    if (got.index[j] != expected[j])
      return "place " + std::to_string(j) + ": " + std::to_string(got.index[j]) + " instead of " +
             std::to_string(expected[j]);
    if (std::memcmp(&got.value[j], &x[expected[j]], sizeof(float)) != 0)
      return "value of " + std::to_string(expected[j]);
  }
  return selector.passes() > 2 ? std::to_string(selector.passes()) + " passes" : "";
}

}  // namespace centroid::topk_cases
