#include "worker/data/batch_loader.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "common/base/random.h"

namespace centroid::worker {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(LoadDepth, FillsNineTenthsOfTheFreeMemoryWithoutThePeak) {
  EXPECT_EQ(load_depth({.free_bytes = 100 * kMiB, .peak_bytes = 50 * kMiB, .batch_bytes = kMiB}),
            40U);
  EXPECT_EQ(
      load_depth({.free_bytes = 100 * kMiB, .peak_bytes = 50 * kMiB, .batch_bytes = 3 * kMiB}),
      13U);
  EXPECT_EQ(load_depth({.free_bytes = 10'000 * kMiB, .peak_bytes = 0, .batch_bytes = kMiB}), 512U);
  EXPECT_EQ(load_depth({.free_bytes = 10'000 * kMiB, .batch_bytes = kMiB, .most = 7}), 7U);
  EXPECT_EQ(load_depth({.free_bytes = 10'000 * kMiB, .batch_bytes = kMiB, .most = 9999}), 512U);
  EXPECT_EQ(load_depth({.free_bytes = 100 * kMiB, .batch_bytes = kMiB, .most = 0}), 0U);
  EXPECT_EQ(load_depth({.free_bytes = 100 * kMiB, .peak_bytes = 90 * kMiB, .batch_bytes = 1}), 0U);
  EXPECT_EQ(load_depth({.free_bytes = 100 * kMiB, .peak_bytes = 200 * kMiB, .batch_bytes = 1}), 0U);
  EXPECT_EQ(load_depth({.free_bytes = 100 * kMiB, .batch_bytes = 91 * kMiB}), 0U);
  EXPECT_EQ(load_depth({.free_bytes = 0, .batch_bytes = 0}), 0U);
  EXPECT_EQ(load_depth({.free_bytes = kMiB, .batch_bytes = 0}), 512U);
}

Dataset dense_data(std::uint64_t samples) {
  Dataset data;
  data.samples = samples;
  data.features = 3;
  data.classes = 7;
  for (std::uint64_t i = 0; i < samples; ++i) {
    for (int j = 0; j < 3; ++j) data.x.push_back(static_cast<float>(10 * i + j));
    data.y.push_back(static_cast<std::uint32_t>(i % 7));
  }
  return data;
}

Dataset text_data(std::uint64_t samples) {
  Dataset data;
  data.samples = samples;
  data.features = 4;
  data.classes = data.vocabulary = 50;
  data.token_begin = {0};
  for (std::uint64_t i = 0; i < samples; ++i) {
    for (std::uint64_t j = 0; j < 2 + i % 4; ++j)
      data.tokens.push_back(static_cast<std::uint32_t>((i + j) % 50));
    data.token_begin.push_back(data.tokens.size());
  }
  return data;
}

void expect_is(const LoadedBatch& got, const Dataset& data,
               std::span<const std::uint64_t> samples) {
  LoadedBatch right;
  right.load(data, samples);
  EXPECT_EQ(got.index, right.index);
  EXPECT_EQ(got.x, right.x);
  EXPECT_EQ(got.y, right.y);
  EXPECT_EQ(got.tokens, right.tokens);
  EXPECT_EQ(got.lengths, right.lengths);
}

TEST(BatchLoader, GivesTheExpectedBatchesInTheirOrderAtEveryDepth) {
  for (const Dataset& data : {dense_data(101), text_data(101)})
    for (const std::uint64_t depth : {0, 1, 2, 5, 100}) {
      BatchLoader loader(depth);
      std::uint64_t taken = 0;
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        const auto order = permutation(101, 1, epoch);
        std::vector<std::span<const std::uint64_t>> batches;
        for (std::size_t at = 0; at < order.size(); at += 8)  // the last one is short
          batches.push_back(std::span(order).subspan(at, std::min<std::size_t>(8, 101 - at)));
        ASSERT_EQ(batches.back().size(), 5U);
        loader.expect(data, batches);
        for (const auto samples : batches) {
          expect_is(loader.take(data, samples), data, samples);
          ++taken;
        }
      }
      EXPECT_EQ(loader.hits(), depth == 0 ? 0 : taken);
      EXPECT_EQ(loader.hits() + loader.misses(), taken);
    }
}

TEST(BatchLoader, TheDepthMayChangeBetweenBatches) {
  const Dataset data = dense_data(60);
  const auto order = permutation(60, 1, 1);
  std::vector<std::span<const std::uint64_t>> batches;
  for (std::size_t at = 0; at < 60; at += 7)
    batches.push_back(std::span(order).subspan(at, std::min<std::size_t>(7, 60 - at)));
  BatchLoader loader(0);
  std::uint64_t ahead = 0;
  for (const std::uint64_t depth : {0, 3, 1, 0, 5}) {
    loader.set_depth(depth);
    EXPECT_EQ(loader.depth(), depth);
    loader.expect(data, batches);
    for (const auto samples : batches) expect_is(loader.take(data, samples), data, samples);
    ahead += depth > 0 ? batches.size() : 0;
    EXPECT_EQ(loader.hits(), ahead) << depth;
  }
  loader.expect(data, batches);  // what is still expected is loaded when it is asked for
  loader.set_depth(0);
  for (const auto samples : batches) expect_is(loader.take(data, samples), data, samples);
}

TEST(BatchLoader, AnythingElseIsLoadedWhenItComes) {
  const Dataset first = dense_data(40);
  Dataset second = dense_data(50);
  for (float& x : second.x) x += 0.5F;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng random(seed);
    BatchLoader loader(1 + random.below(4));
    std::vector<std::vector<std::uint64_t>> batches(6);
    for (auto& batch : batches) {
      batch.resize(random.below(2) == 0 ? random.below(5) : 2000);
      for (auto& sample : batch) sample = random.below(40);
    }
    for (int turn = 0; turn < 20; ++turn) {
      const Dataset& data = random.below(3) == 0 ? second : first;
      const std::size_t from = random.below(6);
      if (random.below(2) == 0)
        loader.expect(random.below(4) == 0 ? second : first,
                      {batches.begin() + from, batches.end()});
      for (std::size_t i = from; i < 6 && random.below(4) > 0; ++i)
        expect_is(loader.take(data, batches[i]), data, batches[i]);
    }
  }
}

/// Notes what it is given.
class NotedStage final : public BatchStage {
 public:
  bool put(const Dataset& data, LoadedBatch& batch) override {
    expect_is(batch, data, batch.index);
    return ++calls_ % 2 == 1;
  }
  std::uint64_t calls_ = 0;
};

TEST(BatchLoader, SaysOfEachBatchWhetherDevicesHaveIt) {
  const Dataset data = dense_data(40);
  const std::vector<std::uint64_t> all = [] {
    std::vector<std::uint64_t> index(40);
    std::iota(index.begin(), index.end(), 0);
    return index;
  }();
  std::vector<std::span<const std::uint64_t>> batches;
  for (std::size_t at = 0; at < 40; at += 4) batches.push_back(std::span(all).subspan(at, 4));
  NotedStage stage;
  BatchLoader loader(20, &stage);
  loader.expect(data, batches);
  for (const auto batch : batches) EXPECT_FALSE(loader.take(data, batch).is_on_devices);
  EXPECT_EQ(stage.calls_, 0U);
  loader.stage_at_most(1);
  loader.expect(data, batches);
  std::uint64_t staged = 0;
  for (const auto batch : batches) staged += loader.take(data, batch).is_on_devices ? 1 : 0;
  EXPECT_GE(staged, 1U);
  EXPECT_LE(staged, (stage.calls_ + 1) / 2);
  // Loaded on demand: never.
  EXPECT_FALSE(loader.take(data, std::vector<std::uint64_t>{7, 3}).is_on_devices);
}

/// A list that moves on, as rounds expect it: no batch is loaded twice.
TEST(BatchLoader, WhatIsExpectedStillIsNotLoadedAgain) {
  const Dataset data = dense_data(403);
  const auto order = permutation(403, 1, 1);
  std::vector<std::span<const std::uint64_t>> batches;
  for (std::size_t at = 0; at < 403; at += 4)
    batches.push_back(std::span(order).subspan(at, std::min<std::size_t>(4, 403 - at)));
  for (const std::uint64_t depth : {1, 3, 8}) {
    NotedStage stage;
    BatchLoader loader(depth, &stage);
    loader.stage_at_most(1000);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto from = batches.begin() + static_cast<std::ptrdiff_t>(i);
      const auto to =
          from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(depth + 2, batches.size() - i));
      loader.expect(data, {from, to});
      expect_is(loader.take(data, batches[i]), data, batches[i]);
    }
    EXPECT_EQ(loader.hits(), batches.size());
    EXPECT_EQ(stage.calls_, batches.size());
  }
}

/// The list changes from any place on: a share is another, or the plan.
TEST(BatchLoader, WhatIsExpectedNoMoreIsDropped) {
  const Dataset data = dense_data(200);
  const auto first = permutation(200, 1, 1), second = permutation(200, 1, 2);
  const auto cut = [](const std::vector<std::uint64_t>& order, std::size_t at, std::size_t size) {
    std::vector<std::span<const std::uint64_t>> batches;
    for (; at < order.size(); at += size)
      batches.push_back(std::span(order).subspan(at, std::min(size, order.size() - at)));
    return batches;
  };
  for (std::size_t same = 0; same < 8; ++same) {
    SCOPED_TRACE(same);
    BatchLoader loader(5);
    loader.expect(data, cut(first, 0, 10));
    auto changed = cut(first, 0, 10);
    changed.resize(same);
    for (const auto samples : cut(second, 10 * same, 9)) changed.push_back(samples);
    if (same > 0) {
      expect_is(loader.take(data, changed[0]), data, changed[0]);
      changed.erase(changed.begin());
    }
    loader.expect(data, changed);
    for (const auto samples : changed) expect_is(loader.take(data, samples), data, samples);
    EXPECT_EQ(loader.misses(), 0u);
  }
}

TEST(BatchLoader, MayGoWhileItLoads) {
  const Dataset data = dense_data(5000);
  const auto order = permutation(5000, 1, 1);
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(3);
    loader.expect(data, {order, order, order});
    if (i % 2 == 0) loader.take(data, order);
  }
}

TEST(BatchBytes, CountsWhatALoadedBatchHolds) {
  const Dataset dense = dense_data(9), text = text_data(9);
  EXPECT_EQ(batch_bytes(dense, 5), 5 * (8 + (3 + 1) * 4U));
  EXPECT_EQ(batch_bytes(text, 5), 5 * (8 + (4 + 4 + 1) * 4U));
}

}  // namespace
}  // namespace centroid::worker
