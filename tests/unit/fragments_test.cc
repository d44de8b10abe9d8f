#include "common/tensor/fragments.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid {
namespace {

ChunkPlan plan_of(const std::vector<std::uint64_t>& sizes, std::uint64_t chunk_bytes = 256) {
  Manifest manifest;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    manifest.push_back({.name = std::to_string(i), .dtype = DType::kF32, .shape = {sizes[i]}});
  return ChunkPlan::make(manifest, chunk_bytes).value();
}

TEST(Fragments, OneIsTheWholePlan) {
  const ChunkPlan plan = plan_of({100, 0, 7});
  const auto fragments = FragmentPlan::make(plan, 1).value();
  EXPECT_EQ(fragments.count(), 1u);
  EXPECT_EQ(fragments[0].tensors.size(), 3u);
  ASSERT_EQ(fragments[0].chunks.size(), plan.chunks().size());
  for (std::size_t i = 0; i < plan.chunks().size(); ++i)
    EXPECT_EQ(fragments[0].chunks[i].id, plan.chunks()[i].id);
}

TEST(Fragments, TheLargestTensorGoesFirstToTheLightest) {
  // 40 | 30; 9 to 30; 1 to 39; 0 to the first of equals.
  const auto fragments = FragmentPlan::make(plan_of({9, 40, 1, 0, 30}), 2).value();
  const auto numbers = [](const FragmentPlan::Fragment& fragment) {
    std::vector<std::uint32_t> out;
    for (const TensorId tensor : fragment.tensors) out.push_back(tensor.value);
    return out;
  };
  EXPECT_EQ(numbers(fragments[0]), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(numbers(fragments[1]), (std::vector<std::uint32_t>{0, 2, 4}));
}

TEST(Fragments, EveryChunkIsInOneAndTheyAreBalanced) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(seed);
    CounterRng rng(seed);
    std::vector<std::uint64_t> sizes(5 + rng.below(40));
    for (auto& size : sizes) size = 1 + rng.below(1000);
    const ChunkPlan plan = plan_of(sizes);
    const auto largest = *std::ranges::max_element(sizes);
    for (std::uint32_t count = 1; count <= 5; ++count) {
      const auto fragments = FragmentPlan::make(plan, count).value();
      std::vector<int> seen(plan.chunks().size(), 0);
      std::uint64_t least = ~0ull, most = 0;
      for (std::uint32_t f = 0; f < count; ++f) {
        std::uint64_t elements = 0;
        for (const Chunk& chunk : fragments[f].chunks) {
          ++seen[chunk.id.value];
          elements += chunk.elements;
          EXPECT_EQ(fragments.number_of(chunk.tensor), f);
        }
        EXPECT_EQ(elements, fragments[f].elements);
        EXPECT_FALSE(fragments[f].chunks.empty());
        least = std::min(least, elements);
        most = std::max(most, elements);
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
      EXPECT_LE(most - least, largest);
    }
  }
}

TEST(Fragments, EachHasItsTurnOnceAndCountsItsOwnSteps) {
  const auto fragments = FragmentPlan::make(plan_of({5, 5, 5}), 3).value();
  for (std::uint64_t committed = 0; committed < 12; ++committed) {
    EXPECT_EQ(fragments.turn(committed), committed % 3);
    EXPECT_EQ(fragments.steps_before(committed), committed / 3);
  }
}

TEST(Fragments, MoreThanTensorsAreRefused) {
  const auto made = FragmentPlan::make(plan_of({5, 0, 5}), 3);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message(),
            "3 fragments of a model of 2 tensors: each fragment needs at least one (fragments)");
  EXPECT_FALSE(FragmentPlan::make(plan_of({5}), 0).ok());
}

}  // namespace
}  // namespace centroid
