#pragma once

#include <cmath>

#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {

/// All-reduces whose results everybody knows; `how` says the algorithm.
inline void expect_exact_numbers(Group& group, CallOptions how) {
  using ::testing::Each;
  const std::uint32_t world = group.world();
  const auto rank = static_cast<float>(group.rank());
  const auto n = static_cast<float>(world);
  const auto reduced = [&](Floats data, Reduction reduction) {
    CallOptions options = how;
    options.reduction = reduction;
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), options)));
    return data;
  };
  EXPECT_THAT(reduced(Floats(5, 1), Reduction::kMean), Each(1.0f));
  // 1, 2, 3: 2; 1, 2, 3, 4: 2.5
  EXPECT_THAT(reduced(Floats(3, rank + 1), Reduction::kMean), Each((n + 1) / 2));
  EXPECT_THAT(reduced(Floats(3, rank), Reduction::kSum), Each(n * (n - 1) / 2));
  EXPECT_THAT(reduced(Floats(7, std::exp2(rank)), Reduction::kSum), Each(std::exp2(n) - 1));
  for (const std::size_t count : {1u, 2u, 7u, 13u}) {
    Floats places(count);
    for (std::size_t i = 0; i < count; ++i) places[i] = static_cast<float>(i) + rank;
    Floats sums(count);
    for (std::size_t i = 0; i < count; ++i) sums[i] = n * static_cast<float>(i) + n * (n - 1) / 2;
    EXPECT_EQ(reduced(places, Reduction::kSum), sums);
  }
  EXPECT_THAT(reduced(Floats(1, rank + 1), Reduction::kMax), Each(n));
  EXPECT_THAT(reduced(Floats(13, rank - 3), Reduction::kMin), Each(-3.0f));
  EXPECT_THAT(reduced(Floats(13, 2), Reduction::kProduct), Each(std::exp2(n)));
  EXPECT_EQ(reduced(Floats(), Reduction::kSum), Floats());
}

/// i and d - 1 - i by turns: their mean is (d - 1) / 2 everywhere, when as many count up as down.
/// Not in place, so that the input must stay as it is.
inline void expect_a_hundred_thousand(Group& group, CallOptions how) {
  constexpr std::size_t kCount = 100'000;
  Floats input(kCount), output(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    input[i] = static_cast<float>(group.rank() % 2 == 0 ? i : kCount - 1 - i);
  const Floats before = input;
  how.reduction = Reduction::kMean;
  EXPECT_TRUE(succeeds(all_reduce(group, view(std::as_const(input)), view(output), how)));
  EXPECT_EQ(input, before);
  if (group.world() % 2 == 0) {
    EXPECT_EQ(output, Floats(kCount, (kCount - 1) / 2.0f));
  }
  Floats places(kCount);
  for (std::size_t i = 0; i < kCount; ++i) places[i] = static_cast<float>(i);
  how.reduction = Reduction::kSum;
  EXPECT_TRUE(succeeds(all_reduce(group, view(places), how)));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kCount; ++i)
    wrong += places[i] != static_cast<float>(i) * static_cast<float>(group.world());
  EXPECT_EQ(wrong, 0u);
}

}  // namespace centroid::collective::testing
