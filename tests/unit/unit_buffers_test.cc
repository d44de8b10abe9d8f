#include "worker/parallel/unit_buffers.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::parallel {
namespace {

TEST(UnitBuffers, WhatIsGivenBackIsUsedAgain) {
  UnitBuffers buffers;
  Buffer one = buffers.take(100), other = buffers.take(100);
  const std::byte* const first = one.data();
  buffers.give_back(std::move(one));
  EXPECT_EQ(buffers.used(), 100u);
  EXPECT_EQ(buffers.spare(), 100u);
  Buffer again = buffers.take(100);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.as<float>().size(), 100u);
  EXPECT_EQ(buffers.used(), 200u);
  EXPECT_EQ(buffers.spare(), 0u);
}

TEST(UnitBuffers, EmptyOnesCountForNothing) {
  UnitBuffers buffers;
  EXPECT_FALSE(buffers.take(0));
  buffers.give_back({});
  EXPECT_EQ(buffers.used() + buffers.spare(), 0u);
}

TEST(UnitBuffers, AnotherSizeTakesThePlaceOfTheOldestSpares) {
  UnitBuffers buffers;
  Buffer small = buffers.take(10), large = buffers.take(90);
  const std::byte* const kept = large.data();
  buffers.give_back(std::move(small));
  buffers.give_back(std::move(large));
  const Buffer middle = buffers.take(5);  // 10 is free now, 90 is spare
  EXPECT_EQ(buffers.spare(), 90u);
  EXPECT_EQ(buffers.take(90).data(), kept);
}

TEST(UnitBuffers, SparesThatAreDroppedAreNotUsedAgain) {
  UnitBuffers buffers;
  const Buffer used = buffers.take(30);
  buffers.give_back(buffers.take(100));
  buffers.drop_spares();
  EXPECT_EQ(buffers.used(), 30u);
  EXPECT_EQ(buffers.spare(), 0u);
  const Buffer fresh = buffers.take(100);  // a spare would be counted off
  EXPECT_EQ(buffers.used(), 130u);
  EXPECT_EQ(buffers.spare(), 0u);
}

TEST(UnitParts, SeveralLieInOneUnit) {
  UnitBuffers buffers;
  UnitParts parts(buffers);
  EXPECT_TRUE(parts.find(3).empty());
  const std::span<float> first = parts.add(buffers.take(10), 4), second = parts.find(5);
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(second.data(), first.data() + 4);
  EXPECT_EQ(second.size(), 5u);
  EXPECT_TRUE(parts.find(2).empty());
  EXPECT_EQ(parts.find(1).data(), first.data() + 9);
  EXPECT_EQ(buffers.used(), 10u);
  parts.clear();
  EXPECT_EQ(buffers.used(), 0u);
  EXPECT_EQ(buffers.spare(), 10u);
  EXPECT_TRUE(parts.find(1).empty());
}

TEST(UnitBuffers, SparesNeverRaiseThePeak) {
  const std::uint64_t seed = 7;
  CounterRng rng(seed);
  UnitBuffers buffers;
  std::vector<Buffer> taken;
  std::uint64_t used = 0, most = 0;
  for (int i = 0; i < 2000; ++i) {
    if (taken.empty() || rng.below(2) == 0) {
      const std::uint64_t elements = 1 + rng.below(4);
      taken.push_back(buffers.take(elements));
      ASSERT_EQ(taken.back().size(), elements * sizeof(float));
      used += elements;
    } else {
      std::swap(taken[rng.below(taken.size())], taken.back());
      used -= taken.back().size() / sizeof(float);
      buffers.give_back(std::move(taken.back()));
      taken.pop_back();
    }
    most = std::max(most, used);
    ASSERT_EQ(buffers.used(), used) << "seed " << seed << ", turn " << i;
    ASSERT_LE(used + buffers.spare(), most) << "seed " << seed << ", turn " << i;
  }
}

}  // namespace
}  // namespace centroid::parallel
