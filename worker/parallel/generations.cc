#include "worker/parallel/generations.h"

#include <algorithm>
#include <utility>

namespace centroid::parallel {

void Generations::complete(const Held& own) {
  present_ = own;
  next_ = {};
  complete_ = own.generation;
}

Held Generations::of(std::uint64_t generation) const {
  for (const Held* one : {&present_, &next_})
    if (generation > 0 && one->generation == generation) return *one;
  return {};
}

std::array<std::uint64_t, 2> Generations::claim() const {
  const bool has_part = of(complete_).part.parameters != nullptr;
  return {complete_, has_part ? std::uint64_t{1} : 0};
}

std::uint32_t Generations::newest(const std::vector<Notice>& claims) {
  const auto first = std::ranges::max_element(
      claims, {}, [](const Notice& one) { return std::pair(one.numbers[0], one.numbers[1]); });
  return static_cast<std::uint32_t>(first - claims.begin());
}

Held Generations::go_back(std::uint64_t generation) {
  const Held own = of(generation);
  complete_ = own.generation;
  for (Held* one : {&present_, &next_})
    if (one->generation != own.generation) *one = {};
  return own;
}

}  // namespace centroid::parallel
