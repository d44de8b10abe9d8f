#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/codec/topk_kernels.h"

namespace centroid::topk {

/// The key of rank k (1 = largest) in x; 1 <= k <= x.size().
std::uint32_t key_of_rank(const Kernels& loops, std::span<const float> x, std::size_t k);
/// The same over several arrays taken together.
std::uint32_t key_of_rank(const Kernels& loops, std::span<const std::span<const float>> arrays,
                          std::size_t k);

struct Count {
  std::size_t greater = 0, equal = 0;
};
/// Elements whose key is greater than, and equal to, `key`.
Count count(const Kernels& loops, std::span<const float> x, std::uint32_t key);

/// Copy the elements with a greater key and the first `ties` with an equal one, in order; returns
/// how many. `to` may be `from` itself.
std::size_t filter(const Kernels& loops, std::span<const float> x, const std::uint32_t* index,
                   std::uint32_t key, std::size_t ties, std::uint32_t* to_index, float* to_value);

}  // namespace centroid::topk
