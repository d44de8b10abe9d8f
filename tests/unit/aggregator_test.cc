#include "server/aggregate/aggregator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

/// An aggregator over one flat sum, with everything it says recorded.
struct Fixture {
  explicit Fixture(std::uint64_t elements, std::uint64_t chunk_bytes = 64, AggregateRule rule = {},
                   bool is_apart = false)
      : plan(
            ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {elements}}}, chunk_bytes)
                .value()),
        sum(elements, -1.0f) {
    Aggregator::Hooks hooks;
    hooks.target = [this](const Chunk& chunk) {
      return std::span(sum).subspan(chunk.position, chunk.elements);
    };
    hooks.is_held = [this](ChunkId chunk) { return held.count(chunk) > 0; };
    hooks.on_complete = [this](ChunkId chunk, double weight) {
      EXPECT_TRUE(complete.emplace(chunk, weight).second) << "completed twice";
    };
    hooks.on_consumed = [this](std::uint32_t rank, std::size_t bytes) { consumed[rank] += bytes; };
    if (is_apart)
      hooks.run_apart = [this](std::function<void()> work, std::function<void()> then) {
        under_way.push_back({std::move(work), std::move(then)});
      };
    aggregator = std::make_unique<Aggregator>(plan, std::move(hooks), rule);
  }
  /// A thread has done this, or another one of what is under way.
  void end(std::size_t which = 0) {
    const auto [work, then] = std::move(under_way.at(which));
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
    work();
    then();
  }
  void begin(std::size_t ranks) {
    complete.clear();
    aggregator->begin(std::vector<std::shared_ptr<const Codec>>(ranks, codec));
  }
  Status offer(std::uint32_t rank, std::uint32_t chunk, double weight, std::span<const float> all) {
    const Chunk& c = plan.chunk(ChunkId(chunk));
    Buffer buffer(c.elements * sizeof(float));
    std::memcpy(buffer.data(), all.data() + c.position, buffer.size());
    const std::size_t bytes = buffer.size();
    return aggregator->offer(rank, c.id, weight, std::move(buffer), bytes);
  }
  std::shared_ptr<const Codec> codec = make_codec("f32").value();
  ChunkPlan plan;
  std::vector<float> sum;
  std::map<ChunkId, int> held;
  std::map<ChunkId, double> complete;
  std::map<std::uint32_t, std::size_t> consumed;
  std::vector<std::pair<std::function<void()>, std::function<void()>>> under_way;
  std::unique_ptr<Aggregator> aggregator;
};

std::vector<std::vector<float>> random_contributions(std::uint64_t seed, std::size_t ranks,
                                                     std::size_t n) {
  CounterRng rng(seed);
  std::vector<std::vector<float>> all(ranks, std::vector<float>(n));
  for (auto& one : all)
    for (float& x : one) x = static_cast<float>(rng.normal());
  return all;
}

/// Left to right: the bits that every timing must give.
std::vector<float> expected_sum(const std::vector<std::vector<float>>& all,
                                const std::vector<double>& weights) {
  std::vector<float> sum(all[0].size());
  for (std::size_t r = 0; r < all.size(); ++r)
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float scaled = static_cast<float>(weights[r]) * all[r][i];
      sum[i] = r == 0 ? scaled : sum[i] + scaled;
    }
  return sum;
}

TEST(Aggregator, TheBitsOfTheSumDoNotDependOnTheOrderOfArrival) {
  const std::size_t ranks = 5, n = 200;
  const auto all = random_contributions(1, ranks, n);
  const std::vector<double> weights = {3, 1, 7, 2, 5};
  const auto expected = expected_sum(all, weights);
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fixture f(n);
    f.begin(ranks);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> arrivals;
    for (std::uint32_t r = 0; r < ranks; ++r)
      for (std::uint32_t c = 0; c < f.plan.chunks().size(); ++c) arrivals.emplace_back(r, c);
    CounterRng rng(seed);
    for (std::size_t i = arrivals.size(); i > 1; --i)
      std::swap(arrivals[i - 1], arrivals[rng.below(i)]);
    for (const auto& [r, c] : arrivals) ASSERT_TRUE(f.offer(r, c, weights[r], all[r]).ok());
    EXPECT_EQ(0, std::memcmp(f.sum.data(), expected.data(), n * sizeof(float)));
    EXPECT_EQ(f.complete.size(), f.plan.chunks().size());
    for (const auto& [chunk, weight] : f.complete) EXPECT_EQ(weight, 18);
    for (std::uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(f.consumed[r], n * sizeof(float));
    EXPECT_EQ(f.aggregator->waiting(), 0u);
  }
}

/// Ranks 1 and 2 are ahead of rank 0, which has sent one of three chunks; rank 3 sends nothing.
TEST(Aggregator, AWaitForTheOrderOfTheSumNamesTheRankThatIsNext) {
  const std::size_t n = 48;  // three chunks
  const std::vector<float> ones(n, 1.0f);
  Fixture f(n);
  f.begin(4);
  const auto queued = [&](std::uint32_t rank) { return f.aggregator->queued(rank); };
  EXPECT_EQ(queued(1).bytes, 0u);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
    ASSERT_TRUE(f.offer(2, chunk, 1, ones).ok());
    if (chunk < 2) {
      ASSERT_TRUE(f.offer(1, chunk, 1, ones).ok());
    }
  }
  ASSERT_TRUE(f.offer(0, 0, 1, ones).ok());
  using Ranks = std::vector<std::uint32_t>;
  EXPECT_EQ(queued(0).bytes, 0u);
  EXPECT_EQ(queued(1).bytes, 64u);
  EXPECT_EQ(queued(1).chunk, ChunkId(1));
  EXPECT_EQ(queued(1).behind, Ranks{0});
  EXPECT_EQ(queued(2).bytes, 128u);
  EXPECT_EQ(queued(2).behind, Ranks{0});
  f.held[ChunkId(1)] = 1;  // for memory: nobody is to send it
  ASSERT_TRUE(f.offer(0, 1, 1, ones).ok());
  ASSERT_TRUE(f.offer(0, 2, 1, ones).ok());
  EXPECT_EQ(queued(1).bytes, 64u);
  EXPECT_EQ(queued(1).behind, Ranks{});
  EXPECT_EQ(queued(2).behind, Ranks{1});
  f.held.clear();
  f.aggregator->retry_blocked();
  f.aggregator->absent(1);
  EXPECT_EQ(queued(1).bytes, 0u);
  EXPECT_EQ(queued(2).bytes, 0u);
}

/// Of n numbers the few that are not 0, as top-k sends them.
Buffer short_payload(const Codec& codec, std::span<const float> numbers, std::size_t& bytes) {
  Buffer payload(codec.max_bytes(numbers.size()));
  bytes = codec.encode(numbers, payload.bytes()).value();
  return payload;
}

TEST(Aggregator, ShortPayloadsWaitForEachOtherAndGiveTheSameBitsInEveryOrder) {
  const std::size_t ranks = 4, n = 4000;
  auto all = random_contributions(3, ranks, n);
  const std::vector<double> weights = {3, 1, 7, 2};
  for (std::size_t r = 0; r + 1 < ranks; ++r)  // the last rank sends all of its numbers
    for (std::size_t i = 0; i < n; ++i)
      if ((i * 7 + r) % 50 != 0) all[r][i] = 0;
  const auto expected = expected_sum(all, weights);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Fixture f(n, 4000);
    const std::shared_ptr<const Codec> topk = make_codec("topk:0.02").value();
    const bool has_dense = seed % 2 == 0;
    f.aggregator->begin({topk, topk, topk, has_dense ? f.codec : topk});
    if (!has_dense) f.aggregator->absent(3);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> arrivals;
    for (std::uint32_t r = 0; r < (has_dense ? 4u : 3u); ++r)
      for (std::uint32_t c = 0; c < f.plan.chunks().size(); ++c) arrivals.emplace_back(r, c);
    CounterRng rng(seed);
    for (std::size_t i = arrivals.size(); i > 1; --i)
      std::swap(arrivals[i - 1], arrivals[rng.below(i)]);
    std::uint64_t sent = 0;
    for (const auto& [r, c] : arrivals) {
      const Chunk& chunk = f.plan.chunk(ChunkId(c));
      if (r == 3) {
        ASSERT_TRUE(f.offer(r, c, weights[r], all[r]).ok());
        continue;
      }
      std::size_t bytes = 0;
      Buffer payload =
          short_payload(*topk, std::span(all[r]).subspan(chunk.position, chunk.elements), bytes);
      sent += bytes;
      ASSERT_TRUE(f.aggregator->offer(r, ChunkId(c), weights[r], std::move(payload), bytes).ok());
    }
    std::vector<float> sum = expected;
    if (!has_dense)
      sum = expected_sum({all.begin(), all.end() - 1}, {weights.begin(), weights.end() - 1});
    EXPECT_EQ(f.sum, sum);
    EXPECT_EQ(f.complete.size(), f.plan.chunks().size());
    EXPECT_EQ(f.consumed[0] + f.consumed[1] + f.consumed[2], sent);
    EXPECT_EQ(f.aggregator->waiting(), 0u);
  }
}

TEST(Aggregator, AShortPayloadThatIsWrongIsRefusedWhenItComes) {
  Fixture f(1000, 4000);
  const std::shared_ptr<const Codec> topk = make_codec("topk:0.02").value();
  f.aggregator->begin({topk, topk});
  std::size_t bytes = 0;
  Buffer payload = short_payload(*topk, std::vector<float>(1000, 1.0f), bytes);
  payload.data()[2] = std::byte{0xFF};
  EXPECT_FALSE(f.aggregator->offer(1, ChunkId(0), 1, std::move(payload), bytes).ok());
}

TEST(Aggregator, WhatWaitsForAllOfOneRankIsAtMostHalfAChunk) {
  constexpr std::size_t kChunks = 64;
  Fixture f(1000 * kChunks, 4000);
  const std::shared_ptr<const Codec> topk = make_codec("topk:0.02").value();
  f.aggregator->begin({topk, topk});
  const std::vector<float> numbers(1000, 1.0f);
  std::uint64_t sent = 0;
  for (std::uint32_t c = 0; c < kChunks; ++c) {
    std::size_t bytes = 0;
    Buffer payload = short_payload(*topk, numbers, bytes);
    sent += bytes;
    ASSERT_TRUE(f.aggregator->offer(0, ChunkId(c), 1, std::move(payload), bytes).ok());
  }
  EXPECT_GE(f.consumed[0], sent - 2000);
}

TEST(Aggregator, AHigherRankWaitsForTheLowerAndGivesItsMemoryBackOnlyThen) {
  Fixture f(8, 64);
  const auto all = random_contributions(2, 2, 8);
  f.begin(2);
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  EXPECT_EQ(f.consumed[1], 0u);
  EXPECT_FALSE(f.aggregator->has_part_of(1));
  EXPECT_EQ(f.aggregator->received(1), 1u);
  ASSERT_TRUE(f.offer(0, 0, 1, all[0]).ok());
  EXPECT_EQ(f.consumed[1], 32u);
  EXPECT_TRUE(f.aggregator->has_part_of(1));
}

TEST(Aggregator, AnAbsentRankIsNotWaitedForAndWhatItHadWaitingIsDropped) {
  Fixture f(8, 64);
  const auto all = random_contributions(3, 3, 8);
  f.begin(3);
  ASSERT_TRUE(f.offer(2, 0, 2, all[2]).ok());
  ASSERT_TRUE(f.offer(1, 0, 5, all[1]).ok());
  f.aggregator->absent(1);
  EXPECT_EQ(f.consumed[1], 32u);
  EXPECT_TRUE(f.complete.empty());
  f.aggregator->absent(0);
  ASSERT_EQ(f.complete.size(), 1u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(f.sum[i], 2.0f * all[2][i]);
}

TEST(Aggregator, ARankThatIsAbsentTwiceIsMissedOnce) {
  Fixture f(8, 64);
  const auto all = random_contributions(3, 3, 8);
  f.begin(3);
  ASSERT_TRUE(f.offer(2, 0, 2, all[2]).ok());
  f.aggregator->absent(0);
  f.aggregator->absent(0);
  ASSERT_TRUE(f.complete.empty()) << "rank 1 is still to come";
  ASSERT_TRUE(f.offer(1, 0, 5, all[1]).ok());
  EXPECT_EQ(f.complete.size(), 1u);
}

TEST(Aggregator, AChunkThatIsStillBeingReadIsWrittenLater) {
  Fixture f(8, 64);
  const auto all = random_contributions(4, 2, 8);
  f.held[ChunkId(0)] = 1;
  f.begin(2);
  ASSERT_TRUE(f.offer(0, 0, 1, all[0]).ok());
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  EXPECT_EQ(f.sum[0], -1.0f);
  f.held.clear();
  f.aggregator->retry_blocked();
  EXPECT_EQ(f.complete.size(), 1u);
  EXPECT_EQ(f.sum[3], all[0][3] + all[1][3]);
}

TEST(Aggregator, AChunkThatWaitsOutlivesItsSender) {
  Fixture f(8, 64);
  const auto all = random_contributions(8, 2, 8);
  f.begin(2);
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  EXPECT_EQ(f.codec.use_count(), 3);  // the fixture and both ranks
  f.codec.reset();
  ASSERT_TRUE(f.offer(0, 0, 1, all[0]).ok());
  EXPECT_EQ(f.sum[1], all[0][1] + all[1][1]);
}

TEST(Aggregator, RefusesAnotherWeightWithinAContribution) {
  Fixture f(32, 64);  // two chunks
  const auto all = random_contributions(9, 1, 32);
  f.begin(1);
  ASSERT_TRUE(f.offer(0, 0, 3, all[0]).ok());
  EXPECT_EQ(f.aggregator->weight(0), 3);
  EXPECT_EQ(f.offer(0, 1, 4, all[0]).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(f.offer(0, 1, 3, all[0]).ok());
}

TEST(Aggregator, RefusesTheSameChunkTwiceAndOneThatDoesNotExist) {
  Fixture f(8, 64);
  const auto all = random_contributions(5, 2, 8);
  f.begin(2);
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  EXPECT_EQ(f.offer(1, 0, 1, all[1]).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(f.aggregator->offer(1, ChunkId(9), 1, Buffer(4), 4).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(Aggregator, AMalformedPayloadThatHasToWaitIsRefusedWhenItComes) {
  for (const std::string spec : {"f32", "f16", "bf16", "int8", "sign", "topk:0.9"}) {
    SCOPED_TRACE(spec);
    Fixture f(1000, 4000);
    const std::shared_ptr<const Codec> codec = make_codec(spec).value();
    f.aggregator->begin({codec, codec});
    const std::size_t most = codec->max_bytes(1000);
    Buffer encoded(most);
    const auto x = random_contributions(6, 1, 1000);
    const std::size_t bytes = codec->encode(x[0], encoded.bytes(), 1).value();
    EXPECT_FALSE(f.aggregator->offer(1, ChunkId(0), 1, std::move(encoded), bytes - 1).ok());
  }
}

TEST(Aggregator, ABadNumberWithinAPayloadThatHasToWaitIsRefusedWhenItComes) {
  Fixture f(1000, 4000);
  const std::shared_ptr<const Codec> int8 = make_codec("int8").value();
  f.aggregator->begin({int8, int8});
  Buffer encoded(int8->max_bytes(1000));
  const auto x = random_contributions(6, 1, 1000);
  const std::size_t bytes = int8->encode(x[0], encoded.bytes(), 1).value();
  encoded.data()[bytes - 1] = std::byte{0x80};  // -128
  const Status offered = f.aggregator->offer(1, ChunkId(0), 1, std::move(encoded), bytes);
  EXPECT_FALSE(offered.ok());
}

TEST(Aggregator, BeginDropsWhatWaitedAndStartsFromNothing) {
  Fixture f(8, 64);
  const auto all = random_contributions(7, 2, 8);
  f.begin(2);
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  f.begin(1);
  EXPECT_EQ(f.consumed[1], 32u);
  ASSERT_TRUE(f.offer(0, 0, 1, all[0]).ok());
  EXPECT_EQ(f.sum[5], all[0][5]);
}

// ---- another rule than the mean

TEST(RobustAggregator, WaitsForAllRanksAndGivesTheSameBitsInAnyOrder) {
  const std::size_t ranks = 5, n = 200;
  auto all = random_contributions(1, ranks, n);
  for (float& x : all[3]) x = 1e30f;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const char* const text = seed % 2 == 0 ? "trimmed_mean:1" : "nnm_trimmed_mean:1";
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + text);
    const auto rule = AggregateRule::parse(text).value();
    Fixture f(n, 64, rule);
    std::vector<float> expected(n);
    for (const Chunk& chunk : f.plan.chunks()) {
      std::vector<const float*> rows;
      for (const auto& one : all) rows.push_back(one.data() + chunk.position);
      RobustMean(rule).combine(std::span<const float* const>(rows),
                               std::span(expected).subspan(chunk.position, chunk.elements));
    }
    f.begin(ranks);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> arrivals;
    for (std::uint32_t r = 0; r < ranks; ++r)
      for (std::uint32_t c = 0; c < f.plan.chunks().size(); ++c) arrivals.emplace_back(r, c);
    CounterRng rng(seed);
    for (std::size_t i = arrivals.size(); i > 1; --i)
      std::swap(arrivals[i - 1], arrivals[rng.below(i)]);
    std::map<std::uint32_t, std::size_t> sent;
    for (const auto& [r, c] : arrivals) {
      ASSERT_TRUE(f.offer(r, c, r == 3 ? 1e15 : 1.0, all[r]).ok());  // what it weighs is ignored
      sent[r] += f.plan.chunk(ChunkId(c)).elements * sizeof(float);
      EXPECT_EQ(f.consumed[r], sent[r]);  // credit is back at once: nobody can be stuck
    }
    EXPECT_EQ(0, std::memcmp(f.sum.data(), expected.data(), n * sizeof(float)));
    EXPECT_EQ(f.complete.size(), f.plan.chunks().size());
    for (const auto& [chunk, weight] : f.complete) EXPECT_EQ(weight, 1);
    EXPECT_EQ(f.aggregator->waiting(), 0u);
  }
}

TEST(RobustAggregator, WhoIsAbsentIsNotWaitedForAndHasNoPartUntilItsChunkCounts) {
  const std::size_t n = 16;
  const auto all = random_contributions(2, 4, n);
  Fixture f(n, 64, AggregateRule::parse("median").value());
  f.begin(4);
  for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(f.offer(r, 0, 1, all[r]).ok());
  EXPECT_FALSE(f.aggregator->has_part_of(0));
  f.aggregator->absent(0);  // what it has sent is dropped
  EXPECT_TRUE(f.complete.empty());
  f.aggregator->absent(3);
  EXPECT_EQ(f.complete.size(), 1u);
  EXPECT_FALSE(f.aggregator->has_part_of(0));
  EXPECT_TRUE(f.aggregator->has_part_of(1));
  for (std::size_t i = 0; i < n; ++i)
    EXPECT_FLOAT_EQ(f.sum[i], 0.5f * all[1][i] + 0.5f * all[2][i]);
  const auto before = f.consumed;
  f.begin(4);
  ASSERT_TRUE(f.offer(1, 0, 1, all[1]).ok());
  f.begin(4);  // an attempt that is given up gives no credit twice
  EXPECT_EQ(f.consumed[1], before.at(1) + n * sizeof(float));
}

TEST(RobustAggregator, AResultThatIsStillReadHoldsUpTheNext) {
  const std::size_t n = 16;
  const auto all = random_contributions(3, 3, n);
  Fixture f(n, 64, AggregateRule::parse("median").value());
  f.begin(3);
  f.held[ChunkId(0)] = 1;
  for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(f.offer(r, 0, 1, all[r]).ok());
  EXPECT_TRUE(f.complete.empty());
  f.held.clear();
  f.aggregator->retry_blocked();
  EXPECT_EQ(f.complete.size(), 1u);
}

/// Any number of threads, which end in any order.
TEST(RobustAggregator, ItsBitsDependNeitherOnTheNumberOfThreadsNorOnTheirOrder) {
  const std::size_t ranks = 5, n = 200;
  const auto all = random_contributions(7, ranks, n);
  for (const char* const text : {"median", "trimmed_mean:1", "nnm_trimmed_mean:1"}) {
    const auto rule = AggregateRule::parse(text).value();
    Fixture here(n, 64, rule);
    here.begin(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r)
      for (std::uint32_t c = 0; c < here.plan.chunks().size(); ++c)
        ASSERT_TRUE(here.offer(r, c, 1, all[r]).ok());
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(std::string(text) + ", seed " + std::to_string(seed));
      CounterRng rng(seed);
      const std::size_t threads = 1 + rng.below(6);
      Fixture f(n, 64, rule, true);
      f.begin(ranks);
      for (std::uint32_t r = 0; r < ranks; ++r)
        for (std::uint32_t c = 0; c < f.plan.chunks().size(); ++c) {
          ASSERT_TRUE(f.offer(r, c, 1, all[r]).ok());
          ASSERT_LE(f.under_way.size(), Aggregator::kAtOnce);
          while (f.under_way.size() >= threads) f.end(rng.below(f.under_way.size()));
        }
      EXPECT_EQ(f.aggregator->waiting() > 0, threads > Aggregator::kAtOnce);
      while (!f.under_way.empty()) f.end(rng.below(f.under_way.size()));
      EXPECT_EQ(f.complete.size(), f.plan.chunks().size());
      EXPECT_FALSE(f.aggregator->is_combining());
      EXPECT_EQ(f.aggregator->waiting(), 0u);
      EXPECT_EQ(0, std::memcmp(f.sum.data(), here.sum.data(), n * sizeof(float)));
    }
  }
}

TEST(RobustAggregator, WhatIsCombinedForAnAttemptThatIsOverIsDropped) {
  const std::size_t n = 16 * (Aggregator::kAtOnce + 1);  // one chunk more than may be under way
  const auto first = random_contributions(4, 3, n), second = random_contributions(5, 3, n);
  Fixture f(n, 64, AggregateRule::parse("median").value(), true);
  const auto send = [&](const auto& all) {
    for (std::uint32_t c = 0; c < f.plan.chunks().size(); ++c)
      for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(f.offer(r, c, 1, all[r]).ok());
  };
  f.begin(3);
  send(first);
  EXPECT_TRUE(f.aggregator->has_part_of(0));
  f.begin(3);
  EXPECT_FALSE(f.aggregator->is_combining());
  EXPECT_FALSE(f.aggregator->has_part_of(0));
  send(second);
  EXPECT_EQ(f.under_way.size(), Aggregator::kAtOnce);  // of the first: those of the second wait
  for (std::size_t i = 0; i < Aggregator::kAtOnce; ++i) {
    EXPECT_TRUE(f.complete.empty());
    f.end();
  }
  while (!f.under_way.empty()) f.end();
  EXPECT_EQ(f.complete.size(), f.plan.chunks().size());
  for (std::size_t i = 0; i < n; ++i)
    EXPECT_EQ(f.sum[i], std::max(std::min(second[0][i], second[1][i]),
                                 std::min(std::max(second[0][i], second[1][i]), second[2][i])));
  f.begin(3);
  send(first);
  f.aggregator.reset();
  f.end();  // it outlives the aggregator
}

/// float32 of another name, so that it is decoded.
class WatchedCodec : public Codec {
 public:
  std::string spec() const override { return "watched"; }
  std::size_t max_bytes(std::size_t n) const override { return floats_->max_bytes(n); }
  Result<std::size_t> encode(std::span<const float> x, MutableBytes out,
                             std::uint64_t stream) const override {
    return floats_->encode(x, out, stream);
  }
  Status decode_add(Bytes in, float scale, bool first, std::span<float> acc) const override {
    return floats_->decode_add(in, scale, first, acc);
  }
  Status decode(Bytes in, std::span<float> out) const override {
    on_decode();
    return floats_->decode(in, out);
  }
  Status check(Bytes in, std::size_t n) const override { return floats_->check(in, n); }
  double squares(Bytes in, std::size_t n) const override { return floats_->squares(in, n); }
  Status check_finite(Bytes in) const override { return floats_->check_finite(in); }
  std::function<void()> on_decode;

 private:
  std::shared_ptr<const Codec> floats_ = make_codec("f32").value();
};

TEST(RobustAggregator, WorkForAnAttemptThatIsOverEndsSoon) {
  const std::size_t n = 16;
  const auto all = random_contributions(6, 3, n);
  const auto watched = std::make_shared<WatchedCodec>();
  std::size_t decoded = 0;
  watched->on_decode = [&] { ++decoded; };
  Fixture f(n, 64, AggregateRule::parse("median").value(), true);
  f.codec = watched;
  const auto send = [&] {
    f.begin(3);
    for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(f.offer(r, 0, 1, all[r]).ok());
  };
  send();
  f.begin(3);
  f.end();
  EXPECT_EQ(decoded, 0u);
  send();
  watched->on_decode = [&] {
    ++decoded;
    f.begin(3);
  };
  f.end();
  EXPECT_EQ(decoded, 1u) << "it has begun";
  EXPECT_TRUE(f.complete.empty());
  watched->on_decode = [&] { ++decoded; };
  send();
  f.end();
  EXPECT_EQ(decoded, 4u);
  EXPECT_EQ(f.complete.size(), 1u);
  send();
  f.aggregator.reset();
  f.end();
  EXPECT_EQ(decoded, 4u);
}

TEST(RobustAggregator, AResultWhoseMemoryIsReadAgainWaitsForIt) {
  const std::size_t n = 16;
  const auto all = random_contributions(3, 4, n);
  Fixture f(n, 64, AggregateRule::parse("median").value(), true);
  f.begin(4);
  for (std::uint32_t r = 0; r < 4; ++r) ASSERT_TRUE(f.offer(r, 0, 1, all[r]).ok());
  f.aggregator->absent(0);  // it has a part
  f.held[ChunkId(0)] = 1;
  f.end();
  f.aggregator->retry_blocked();
  EXPECT_TRUE(f.complete.empty());
  EXPECT_TRUE(f.aggregator->is_combining());
  f.held.clear();
  f.aggregator->retry_blocked();
  EXPECT_EQ(f.complete.size(), 1u);
  EXPECT_FALSE(f.aggregator->is_combining());
  EXPECT_NE(f.sum[0], -1);
}

TEST(RobustAggregator, WhatIsWrongIsToldWhenItComes) {
  Fixture f(100, 4096, AggregateRule::parse("median").value());
  f.codec = make_codec("int8").value();
  f.begin(3);
  Buffer buffer(10);
  const Status refused = f.aggregator->offer(0, ChunkId(0), 1, std::move(buffer), 10);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(f.aggregator->waiting(), 0u);
}

}  // namespace
}  // namespace centroid::server
