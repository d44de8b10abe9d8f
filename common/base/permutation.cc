#include "common/base/permutation.h"

#include <numeric>
#include <utility>

#include "common/base/random.h"

namespace centroid {

std::vector<std::uint64_t> permutation(std::uint64_t samples, std::uint64_t seed,
                                       std::uint64_t epoch) {
  std::vector<std::uint64_t> order(samples);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  CounterRng rng(seed, epoch);
  for (std::uint64_t i = samples; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

}  // namespace centroid
