#include "server/aggregate/contribution_stage.h"

#include <algorithm>
#include <bit>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::server::contribution_stage_test {
namespace {

using ::testing::HasSubstr;

struct Fixture {
  ChunkPlan plan =
      ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {32}}}, 64).value();
  StagedContribution staged{plan, make_codec("f32").value(), plan.chunks().size()};

  /// Elements value, value + 1, ..
  Status put(std::uint32_t chunk, double weight, float value, std::size_t elements = 16) {
    Buffer buffer(elements * sizeof(float));
    for (std::size_t i = 0; i < elements; ++i)
      buffer.as<float>()[i] = value + static_cast<float>(i);
    return staged.put(ChunkId(chunk), weight, std::move(buffer), elements * sizeof(float));
  }
};

TEST(StagedContribution, IsAddedOnlyAsAWhole) {
  Fixture f;
  ASSERT_TRUE(f.put(1, 3, 3).ok());
  EXPECT_FALSE(f.staged.is_complete());
  ASSERT_TRUE(f.put(0, 3, 1).ok());
  EXPECT_TRUE(f.staged.is_complete());
  EXPECT_EQ(f.staged.weight(), 3);
  EXPECT_EQ(f.staged.bytes(), 32 * sizeof(float));
  std::vector<float> sum(16, 10);
  f.staged.add_to(sum, ChunkId(0), 3, false);
  EXPECT_EQ(sum[0], 13);
  EXPECT_EQ(sum[15], 10 + 3 * 16);
  f.staged.add_to(sum, ChunkId(1), 0.5, true);  // damped, and the first of its sum
  EXPECT_EQ(sum[0], 1.5);
  EXPECT_EQ(sum[15], 9);
}

TEST(StagedContribution, WhatCannotBeAddedIsRefusedWhenItComes) {
  Fixture f;
  ASSERT_TRUE(f.put(0, 3, 1).ok());
  EXPECT_THAT(f.put(0, 3, 1).error().message(), HasSubstr("arrived twice"));
  EXPECT_THAT(f.put(7, 3, 1).error().message(), HasSubstr("does not exist"));
  EXPECT_THAT(f.put(1, 4, 1).error().message(), HasSubstr("weight changed"));
  EXPECT_FALSE(f.put(1, 3, 1, 15).ok()) << "a payload of the wrong length";
  EXPECT_EQ(f.staged.received(), 1u);
  ASSERT_TRUE(f.put(1, 3, 5).ok()) << "the right one may still come";
}

TEST(StagedContribution, ChunksOfBuffersAreF32WhateverTheCodecIs) {
  const auto plan =
      ChunkPlan::make({{"w", DType::kF32, {16}}, {"running_mean", DType::kF32, {16}}}, 64).value();
  StagedContribution staged(plan, make_codec("bf16").value(), 2);
  const auto put = [&](std::uint32_t chunk, std::size_t bytes) {
    Buffer buffer(bytes);
    std::ranges::fill(buffer.bytes(), std::byte{0x3F});
    return staged.put(ChunkId(chunk), 2, std::move(buffer), bytes);
  };
  EXPECT_THAT(put(1, 32).error().message(), HasSubstr("f32 payload: 32 bytes"));
  ASSERT_TRUE(put(1, 64).ok());
  EXPECT_FALSE(put(0, 64).ok());
  ASSERT_TRUE(put(0, 32).ok());
  std::vector<float> sum(16);
  staged.add_to(sum, ChunkId(1), 2, true);
  EXPECT_EQ(sum[15], 2 * std::bit_cast<float>(0x3F3F3F3Fu));
}

}  // namespace
}  // namespace centroid::server::contribution_stage_test
