#include "server/shard/placement.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

using Shapes = std::vector<std::vector<std::uint64_t>>;

ChunkPlan plan_of(const Shapes& shapes, std::uint64_t chunk_bytes = 1u << 20) {
  Manifest manifest;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    manifest.push_back({.name = std::to_string(i), .dtype = DType::kF32, .shape = shapes[i]});
  return ChunkPlan::make(manifest, chunk_bytes).value();
}

/// GPT-2 small: embeddings, 12 blocks, the last norm.
Shapes gpt2() {
  Shapes out{{50257, 768}, {1024, 768}, {768}, {768}};
  for (int block = 0; block < 12; ++block)
    for (const auto& shape : Shapes{{768, 2304},
                                    {2304},
                                    {768, 768},
                                    {768},
                                    {768, 3072},
                                    {3072},
                                    {3072, 768},
                                    {768},
                                    {768},
                                    {768},
                                    {768},
                                    {768}})
      out.push_back(shape);
  return out;
}

/// ResNet-50: convolutions, their norms, the classifier.
Shapes resnet50() {
  Shapes out{{64, 3, 7, 7}, {64}, {64}};
  std::uint64_t in = 64;
  const std::uint64_t blocks[] = {3, 4, 6, 3};
  for (std::uint64_t stage = 0; stage < 4; ++stage) {
    const std::uint64_t width = 64u << stage;
    for (std::uint64_t block = 0; block < blocks[stage]; ++block) {
      for (const auto& shape : Shapes{{width, in, 1, 1},
                                      {width},
                                      {width},
                                      {width, width, 3, 3},
                                      {width},
                                      {width},
                                      {4 * width, width, 1, 1},
                                      {4 * width},
                                      {4 * width}})
        out.push_back(shape);
      if (block == 0) out.push_back({4 * width, in, 1, 1});
      in = 4 * width;
    }
  }
  out.push_back({1000, 2048});
  out.push_back({1000});
  return out;
}

std::uint64_t moved(const ChunkPlan& plan, const std::vector<std::uint16_t>& before,
                    const std::vector<std::uint16_t>& after) {
  std::uint64_t elements = 0;
  for (const Chunk& chunk : plan.chunks())
    if (before[chunk.id.value] != after[chunk.id.value]) elements += chunk.elements;
  return elements;
}

TEST(Placement, OneServerHasAll) {
  const ChunkPlan plan = plan_of({{100}, {7}}, 64);
  const auto owners = place(plan, 1);
  EXPECT_EQ(owners.size(), plan.chunks().size());
  EXPECT_EQ(std::ranges::count(owners, 0), static_cast<std::ptrdiff_t>(owners.size()));
  EXPECT_EQ(imbalance(plan, 1, owners), 1.0);
}

TEST(Placement, TheLargestGoesFirstToTheLightest) {
  // 40 | 30; 9 to 30; 1 to 39: 40 each.
  EXPECT_EQ(place(plan_of({{9}, {40}, {1}, {30}}, 256), 2),
            (std::vector<std::uint16_t>{1, 0, 1, 1}));
}

TEST(Placement, RealModelsAreWithinTwoPercent) {
  for (const auto& shapes : {gpt2(), resnet50(), Shapes(12, {4096, 4096})})
    for (std::size_t servers = 2; servers <= 8; ++servers) {
      const ChunkPlan plan = plan_of(shapes);
      EXPECT_LE(imbalance(plan, servers, place(plan, servers)), kMaxImbalance)
          << servers << " servers, " << plan.total_elements() << " elements";
    }
}

TEST(Placement, OneHugeChunkIsToldByTheImbalance) {
  const ChunkPlan plan = plan_of({{100'000}, {10}, {10}}, 1u << 20);
  EXPECT_GT(imbalance(plan, 2, place(plan, 2)), 1.9);
  const ChunkPlan finer = plan_of({{100'000}, {10}, {10}}, 4096);  // what its warning advises
  EXPECT_LE(imbalance(finer, 2, place(finer, 2)), kMaxImbalance);
}

TEST(Placement, ChunksOfAUnitLieTogetherAndMoveTogether) {
  const ChunkPlan plan = plan_of({{1000}, {300}, {700}, {20}, {10}, {650}}, 256);
  std::vector<std::uint32_t> units;
  for (const Chunk& chunk : plan.chunks()) units.push_back(chunk.tensor.value);
  const auto expect_together = [&](const std::vector<std::uint16_t>& owners) {
    for (std::size_t i = 1; i < owners.size(); ++i) {
      if (units[i] == units[i - 1]) {
        EXPECT_EQ(owners[i], owners[i - 1]) << "chunk " << i;
      }
    }
  };
  auto owners = place(plan, 2, {}, units);
  expect_together(owners);
  EXPECT_LE(imbalance(plan, 2, owners), 1.05) << "1000 + 300 + 20 + 10 | 700 + 650";
  for (const std::size_t servers : {3, 4, 2, 1}) {
    owners = place(plan, servers, owners, units);
    expect_together(owners);
    EXPECT_EQ(place(plan, servers, owners, units), owners);
  }
}

TEST(Placement, RandomModelsAreEvenAndServersComeAndGoWithFewMoves) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
    SCOPED_TRACE(std::string("seed ").append(std::to_string(seed)));
    CounterRng rng(seed);
    Shapes shapes(20 + rng.below(200));
    for (auto& shape : shapes) shape = {1 + rng.below(rng.below(4) == 0 ? 200'000 : 3000)};
    const ChunkPlan plan = plan_of(shapes, 4096);
    const std::uint64_t largest = plan.max_chunk_elements();
    std::size_t servers = 1 + rng.below(6);
    auto owners = place(plan, servers);
    for (int change = 0; change < 12; ++change) {
      const bool grows = servers == 1 || (servers < 9 && rng.below(2) == 0);
      const std::uint64_t total = plan.total_elements();
      if (grows) {
        ++servers;
        const auto after = place(plan, servers, owners);
        for (const Chunk& chunk : plan.chunks()) {
          if (owners[chunk.id.value] != after[chunk.id.value]) {
            EXPECT_EQ(after[chunk.id.value], servers - 1);  // only to the one that came
          }
        }
        EXPECT_LE(moved(plan, owners, after), total / servers + largest);
        owners = after;
      } else {
        const auto gone = static_cast<std::uint16_t>(rng.below(servers));
        auto before = owners;  // the servers behind it move up
        for (std::uint16_t& owner : before)
          owner = owner == gone ? kNobody : static_cast<std::uint16_t>(owner - (owner > gone));
        --servers;
        const auto after = place(plan, servers, before);
        for (const Chunk& chunk : plan.chunks()) {
          if (before[chunk.id.value] != kNobody) {
            EXPECT_EQ(after[chunk.id.value], before[chunk.id.value]);
          }
        }
        owners = after;
      }
      EXPECT_EQ(place(plan, servers, owners), owners) << "a second time nothing moves";
      if (total > 100 * servers * largest) {
        EXPECT_LE(imbalance(plan, servers, owners), kMaxImbalance);
      }
    }
  }
}

TEST(Placement, BucketsOfKeysAreSharedWithinTwoPercent) {
  constexpr std::size_t kBuckets = 4096;
  for (std::size_t servers = 1; servers <= kMaxServers; ++servers) {
    SCOPED_TRACE(servers);
    const auto owners = place_buckets(kBuckets, servers);
    ASSERT_EQ(owners.size(), kBuckets);
    std::vector<std::size_t> counts(servers);
    for (const std::uint16_t owner : owners) ++counts.at(owner);
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    EXPECT_GE(*least, 1u);
    EXPECT_LE(*most - *least, 1u);
    if (servers > 82) continue;
    EXPECT_LE(static_cast<double>(*most * servers), kMaxImbalance * kBuckets);
  }
}

TEST(Placement, NoMoreBucketsMoveThanMustWhenServersComeAndGo) {
  constexpr std::size_t kBuckets = 4096;
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  std::vector<bool> keeps(1, true);
  std::vector<std::uint16_t> owners(kBuckets, 0);
  for (int turn = 0; turn < 200; ++turn) {
    if (rng.below(2) == 0 && keeps.size() < 40) keeps.push_back(true);
    if (keeps.size() > 1 && rng.below(3) == 0) {
      const std::size_t some = 1 + rng.below(keeps.size() - 1);
      keeps[some] = !keeps[some];
    }
    const auto after = replace_buckets(owners, keeps);
    std::vector<std::size_t> before(keeps.size()), now(keeps.size());
    for (const std::uint16_t owner : owners) ++before.at(owner);
    for (const std::uint16_t owner : after) ++now.at(owner);
    const auto staying = static_cast<std::size_t>(std::ranges::count(keeps, true));
    std::size_t moved = 0, must = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) moved += owners[i] != after[i];
    for (std::size_t i = 0; i < keeps.size(); ++i) {
      const std::size_t share = keeps[i] ? kBuckets / staying : 0;
      ASSERT_TRUE(now[i] == share || (keeps[i] && now[i] == share + 1));
      must += before[i] > now[i] ? before[i] - now[i] : 0;
    }
    ASSERT_EQ(moved, must) << "nobody gives and takes at once";
    ASSERT_EQ(replace_buckets(after, keeps), after);
    owners = after;
    const std::size_t any = rng.below(keeps.size());
    const auto text = to_ranges(owners, static_cast<std::uint16_t>(any));
    const auto back = buckets_of(text, kBuckets);
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    ASSERT_EQ(back->size(), now[any]);
    for (const std::uint16_t bucket : *back) ASSERT_EQ(owners[bucket], any);
  }
}

TEST(Placement, ATextThatNamesNoBucketsIsRefused) {
  for (const char* text : {"1-", "x", "5-4", "4096", "1,2", "1 ", "-3"})
    EXPECT_FALSE(buckets_of(text, 4096).ok()) << text;
  EXPECT_EQ(buckets_of("0-2 7", 8).value(), (std::vector<std::uint16_t>{0, 1, 2, 7}));
  EXPECT_TRUE(buckets_of("", 8).value().empty());
}

}  // namespace
}  // namespace centroid::server
