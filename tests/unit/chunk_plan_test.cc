#include "common/tensor/chunk_plan.h"

#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid {
namespace {

using ::testing::HasSubstr;

TEST(PartOf, FirstPartsGetTheRemainder) {
  EXPECT_EQ(part_of(10, 4, 0), (Range{0, 3}));
  EXPECT_EQ(part_of(10, 4, 1), (Range{3, 6}));
  EXPECT_EQ(part_of(10, 4, 2), (Range{6, 8}));
  EXPECT_EQ(part_of(10, 4, 3), (Range{8, 10}));
  EXPECT_EQ(part_of(1, 3, 2), (Range{1, 1}));
  EXPECT_EQ(part_of(0, 3, 0), (Range{0, 0}));
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(part_of(kAll, kAll, kAll - 1), (Range{kAll - 1, kAll}));
  EXPECT_EQ(part_of(kAll, 2, 1), (Range{kAll / 2 + 1, kAll}));
}

TEST(PartOf, PartsAreDisjointAndCoverForRandomTotals) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  CounterRng rng(kSeed);
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t total = rng.next() >> rng.below(64);
    const std::uint64_t parts = 1 + rng.below(100);
    std::uint64_t at = 0;
    for (std::uint64_t p = 0; p < parts; ++p) {
      const Range range = part_of(total, parts, p);
      ASSERT_EQ(range.begin, at);
      ASSERT_TRUE(range.size() == total / parts || range.size() == total / parts + 1);
      at = range.end;
    }
    ASSERT_EQ(at, total);
  }
}

Manifest random_manifest(CounterRng& rng) {
  Manifest manifest;
  const std::uint64_t tensors = 1 + rng.below(12);
  for (std::uint64_t t = 0; t < tensors; ++t) {
    Shape shape;
    for (std::uint64_t r = rng.below(4); r > 0; --r)
      shape.push_back(rng.below(10) == 0 ? 0 : 1 + rng.below(40));
    manifest.push_back({std::to_string(t), DType::kF32, shape});
  }
  return manifest;
}

TEST(ChunkPlan, CoversEveryElementOnceWithinTheLimitForRandomManifests) {
  constexpr std::uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  CounterRng rng(kSeed);
  for (int i = 0; i < 300; ++i) {
    const Manifest manifest = random_manifest(rng);
    const std::uint64_t limit = 64 + rng.below(5000);
    const auto made = ChunkPlan::make(manifest, limit);
    ASSERT_TRUE(made.ok()) << made.error().message();
    const ChunkPlan& plan = *made;
    EXPECT_EQ(plan.manifest(), manifest);
    EXPECT_EQ(plan.max_chunk_bytes(), limit);

    std::uint64_t position = 0;
    std::uint32_t id = 0;
    std::uint64_t largest_of_all = 0;
    for (std::uint32_t t = 0; t < manifest.size(); ++t) {
      ASSERT_EQ(plan.position_of(TensorId(t)), position);
      const std::uint64_t elements = manifest[t].elements();
      std::uint64_t offset = 0;
      std::uint64_t smallest = elements;
      std::uint64_t largest = 0;
      for (const Chunk& chunk : plan.chunks_of(TensorId(t))) {
        ASSERT_EQ(chunk.id, ChunkId(id++));
        ASSERT_EQ(&plan.chunk(chunk.id), &chunk);
        ASSERT_EQ(chunk.tensor, TensorId(t));
        ASSERT_EQ(chunk.offset, offset);
        ASSERT_EQ(chunk.position, position + offset);
        ASSERT_GE(chunk.elements, 1u);
        ASSERT_LE(chunk.elements * sizeof(float), limit);
        smallest = std::min(smallest, chunk.elements);
        largest = std::max(largest, chunk.elements);
        offset += chunk.elements;
      }
      ASSERT_EQ(offset, elements);
      if (elements > 0) {
        ASSERT_LE(largest - smallest, 1u);
        const std::uint64_t per_chunk = limit / sizeof(float);
        ASSERT_EQ(plan.chunks_of(TensorId(t)).size(), (elements + per_chunk - 1) / per_chunk);
      }
      position += elements;
      largest_of_all = std::max(largest_of_all, largest);
    }
    ASSERT_EQ(plan.chunks().size(), id);
    ASSERT_EQ(plan.total_elements(), position);
    ASSERT_EQ(plan.max_chunk_elements(), largest_of_all);
    ASSERT_EQ(plan.hash(), ChunkPlan::make(manifest, limit)->hash());
  }
}

TEST(ChunkPlan, HashFollowsManifestAndCut) {
  const Manifest manifest = {{"layer.weight", DType::kF32, {512, 64}},
                             {"layer.bias", DType::kF32, {512}}};
  const std::uint64_t hash = ChunkPlan::make(manifest, 1024)->hash();
  EXPECT_EQ(hash, 0xB3F836E7AF43941DULL);  // known answer: the hash is on the wire
  EXPECT_NE(hash, ChunkPlan::make(manifest, 2048)->hash());
  EXPECT_EQ(hash, ChunkPlan::make(manifest, 1026)->hash());  // the same cut
  EXPECT_NE(hash, ChunkPlan::make({manifest[1], manifest[0]}, 1024)->hash());
}

TEST(ChunkPlan, RefusesWithTheReasonAndWithoutAllocating) {
  const auto message = [](const Manifest& manifest, std::uint64_t limit) {
    const auto plan = ChunkPlan::make(manifest, limit);
    EXPECT_FALSE(plan.ok());
    return plan.ok() ? "" : plan.error().message();
  };
  EXPECT_THAT(message({}, 1024), HasSubstr("no tensor"));
  EXPECT_THAT(message({{"a", DType::kF32, {4}}}, 63), HasSubstr("max_chunk_bytes: 63 is below 64"));
  EXPECT_THAT(message({{"a", DType::kF16, {4}}}, 64), HasSubstr("\"a\": dtype f16"));
  EXPECT_THAT(message({{"a", DType::kF32, {std::uint64_t{1} << 40}}}, 64), HasSubstr("2^32-1"));
  EXPECT_TRUE(ChunkPlan::make({{"a", DType::kF32, {std::uint64_t{1} << 40}}},
                              std::numeric_limits<std::uint64_t>::max())
                  .ok());
}

TEST(ChunkPlan, TensorsWithoutElementsHaveNoChunk) {
  const auto plan = ChunkPlan::make({{"a", DType::kF32, {0}}, {"b", DType::kF32, {}}}, 64);
  EXPECT_TRUE(plan->chunks_of(TensorId(0)).empty());
  ASSERT_EQ(plan->chunks_of(TensorId(1)).size(), 1u);
  EXPECT_EQ(plan->chunk(ChunkId(0)).tensor, TensorId(1));
}

}  // namespace
}  // namespace centroid
