#include "worker/loop/epoch_order.h"

#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "worker/data/batch_loader.h"

namespace centroid::worker {
namespace {

Share share_of(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) {
  Share share;
  share.seed = 1;
  share.epoch = epoch;
  share.begin = begin;
  share.end = end;
  return share;
}

TEST(EpochOrder, TheSharesToComeAreAsFarApartAsTheLastTwo) {
  EpochOrder order;
  const auto whole = permutation(100, 1, 0);
  (void)order.part(100, share_of(0, 4, 8));
  EXPECT_TRUE(order.next(share_of(0, 4, 8), 5).empty()) << "nothing is known of the stride";
  (void)order.part(100, share_of(0, 16, 20));
  for (const std::uint64_t most : {0, 1, 5, 6, 7, 100}) {
    const auto next = order.next(share_of(0, 16, 20), most);
    ASSERT_EQ(next.size(), std::min<std::uint64_t>(most, 6));  // at 28, 40, ..., 88
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::size_t at = 28 + 12 * i;
      const auto right = std::span(whole).subspan(at, std::min<std::size_t>(4, 100 - at));
      EXPECT_TRUE(std::ranges::equal(next[i], right)) << i;
    }
  }
  EXPECT_TRUE(order.next(share_of(0, 16, 16), 5).empty());
}

/// Rounds of one gradient, as the training loop makes them: one worker of three, whose shares are
/// 4 of 12 samples; the epoch's last round divides what is left.
TEST(EpochOrder, RoundsFindTheirBatchesLoaded) {
  constexpr std::uint64_t kSamples = 100, kRound = 12;
  Dataset data;
  data.samples = kSamples;
  data.features = 2;
  data.classes = 2;
  data.x.resize(2 * kSamples);
  data.y.resize(kSamples);
  BatchLoader loader(4);
  EpochOrder order;
  std::uint64_t rounds = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch)
    for (std::uint64_t at = 0; at < kSamples; at += kRound, ++rounds) {
      const std::uint64_t left = std::min(kRound, kSamples - at);
      const Share share = share_of(epoch, at + left / 3, at + left / 3 + left / 3);
      const auto samples = order.part(kSamples, share);
      const auto& loaded = loader.take(data, samples);
      EXPECT_TRUE(std::ranges::equal(loaded.index, samples));
      loader.expect(data, order.next(share, loader.depth()));
    }
  // The first two, each epoch's short last one, and the first of the other epochs.
  EXPECT_EQ(loader.misses(), 2u + 3u + 2u);
  EXPECT_EQ(loader.hits(), rounds - loader.misses());
}

}  // namespace
}  // namespace centroid::worker
