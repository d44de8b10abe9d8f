#include "server/aggregate/reply_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server::reply_encoder_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5;

/// A server's planes around an encoder, and a sender with a memory of its own to compare with.
struct Fixture {
  explicit Fixture(const std::string& spec, const std::string& second = "b")
      : plan(ChunkPlan::make(
                 {{"a", DType::kF32, {700}}, {second, DType::kF32, {400}}, {"c", DType::kF32, {9}}},
                 256 * sizeof(float))
                 .value()),
        encoder(ReplyEncoder::make(spec, plan, kSeed).value()),
        residual(plan.total_elements()),
        spare(plan.total_elements()) {
    encoder->begin(Round(1));
  }

  /// Sums of small whole numbers, so that additions are exact.
  std::vector<float> mean(std::uint64_t stream) const {
    CounterRng random(kSeed, stream);
    std::vector<float> values(plan.total_elements());
    for (float& v : values) v = static_cast<float>(random.below(2001)) - 1000.0f;
    return values;
  }

  /// A round's payloads, its chunks completed in the given order.
  std::map<ChunkId, std::vector<std::byte>> encode(Round round, const std::vector<float>& means,
                                                   std::uint64_t order = 0) {
    encoder->begin(round);
    spare = means;
    std::vector<ChunkId> chunks;
    for (const Chunk& chunk : plan.chunks()) chunks.push_back(chunk.id);
    CounterRng random(order);
    for (std::size_t i = chunks.size(); order != 0 && i > 1; --i)
      std::swap(chunks[i - 1], chunks[random.below(i)]);
    std::map<ChunkId, std::vector<std::byte>> payloads;
    for (const ChunkId chunk : chunks) {
      const auto emit = [&](const Chunk& of, std::vector<std::byte> payload) {
        EXPECT_TRUE(payloads.emplace(of.id, std::move(payload)).second) << "sent twice";
      };
      EXPECT_TRUE(encoder->complete(chunk, memory(), emit).ok());
      emitted_after.push_back(payloads.size());
    }
    return payloads;
  }

  ReplyEncoder::Memory memory() {
    ReplyEncoder::Memory memory;
    memory.means = spare;
    if (encoder->stores_residual()) memory.residual = residual;
    return memory;
  }

  void commit() {
    encoder->commit();
    std::swap(spare, residual);
  }

  std::vector<float> decode(const std::map<ChunkId, std::vector<std::byte>>& payloads) const {
    std::vector<float> values(plan.total_elements());
    for (const Chunk& chunk : plan.chunks())
      EXPECT_TRUE(encoder->codec(chunk)
                      .decode(payloads.at(chunk.id),
                              std::span(values).subspan(chunk.position, chunk.elements))
                      .ok());
    return values;
  }

  ChunkPlan plan;
  std::unique_ptr<ReplyEncoder> encoder;
  std::vector<float> residual, spare;
  std::vector<std::size_t> emitted_after;
};

std::vector<float> added(std::vector<float> a, const std::vector<float>& b) {
  std::transform(a.begin(), a.end(), b.begin(), a.begin(), std::plus<>());
  return a;
}

const std::vector<std::string> kSpecs = {
    "topk:0.02", "topk:0.05,values=bf16", "topk:0.01,scope=global", "int8:feedback=on",
    "sign",      "bf16:feedback=on",      "topk:0.01,warmup=6"};

class ReplyOfCodec : public ::testing::TestWithParam<std::string> {};

TEST_P(ReplyOfCodec, WhatIsSentAndWhatIsLeftAreAllMeansBitForBit) {
  Fixture f(GetParam());
  std::vector<float> sent(f.plan.total_elements()), means(f.plan.total_elements());
  for (std::uint64_t round = 1; round <= 8; ++round) {
    const auto mean = f.mean(round);
    means = added(means, mean);
    sent = added(sent, f.decode(f.encode(Round(round), mean, round)));
    f.commit();
    const auto all = added(sent, f.residual);
    if (GetParam() != "sign") {
      ASSERT_EQ(all, means) << round;
    }
    for (std::size_t i = 0; i < all.size(); ++i)  // a sign's residual is rounded once a round
      ASSERT_NEAR(all[i], means[i], 1e-5 * (1 + std::abs(means[i]) + std::abs(sent[i]))) << round;
  }
  EXPECT_EQ(f.encoder->rounds(), 8u);
}

TEST_P(ReplyOfCodec, SendsTheBytesOfASenderThatOwnsItsResidual) {
  Fixture f(GetParam());
  const auto own = ErrorFeedback::make(GetParam(), f.plan).value();
  for (std::uint64_t round = 1; round <= 4; ++round) {
    const auto mean = f.mean(round);
    const auto payloads = f.encode(Round(round), mean);
    f.commit();
    for (const Chunk& chunk : f.plan.chunks()) {
      const Bytes expected = own->encode(chunk.id, mean, round).value();
      EXPECT_TRUE(std::ranges::equal(payloads.at(chunk.id), expected)) << round;
    }
  }
}

TEST_P(ReplyOfCodec, AnAttemptThatWasNotCommittedLeavesNoTrace) {
  Fixture clean(GetParam()), repeated(GetParam());
  for (std::uint64_t round = 1; round <= 5; ++round) {
    if (round == 2 || round == 4) (void)repeated.encode(Round(round), repeated.mean(100 + round));
    if (round == 4) (void)repeated.encode(Round(round - 1), repeated.mean(7));  // a skipped round
    const auto mean = clean.mean(round);
    EXPECT_EQ(repeated.encode(Round(round), mean), clean.encode(Round(round), mean)) << round;
    repeated.commit();
    clean.commit();
  }
  EXPECT_EQ(repeated.residual, clean.residual);
  EXPECT_EQ(repeated.encoder->rounds(), clean.encoder->rounds());
}

TEST_P(ReplyOfCodec, OrderOfCompletionMakesNoDifference) {
  Fixture first(GetParam()), second(GetParam());
  for (std::uint64_t round = 1; round <= 4; ++round) {
    const auto mean = first.mean(round);
    EXPECT_EQ(second.encode(Round(round), mean, 1 + round), first.encode(Round(round), mean));
    first.commit();
    second.commit();
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplyOfCodec, ::testing::ValuesIn(kSpecs), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(ReplyEncoder, SendsMeansOfBuffersAsTheyAreAndLeavesNothingOfThem) {
  auto specs = kSpecs;
  specs.insert(specs.end(), {"bf16", "int8", "topk:0.1,feedback=off"});
  for (const std::string& spec : specs) {
    SCOPED_TRACE(spec);
    Fixture f(spec, "b.running_mean");
    const std::size_t begin = 700, end = 1100;
    for (std::uint64_t round = 1; round <= 3; ++round) {
      const auto mean = f.mean(round);
      const auto sent = f.decode(f.encode(Round(round), mean, round));
      EXPECT_TRUE(std::equal(mean.begin() + begin, mean.begin() + end, sent.begin() + begin));
      f.commit();
      if (!f.encoder->stores_residual()) continue;
      for (std::size_t i = begin; i < end; ++i) EXPECT_EQ(f.residual[i], 0);
    }
  }
}

TEST(ReplyEncoder, SendsATensorWhenItsLastChunkIsThereAndTheWholeWhenItIsGlobal) {
  const auto emitted = [](const std::string& spec) {
    Fixture f(spec);
    (void)f.encode(Round(1), f.mean(1));
    return f.emitted_after;
  };
  using Counts = std::vector<std::size_t>;  // tensors of 3, 2 and 1 chunks
  EXPECT_EQ(emitted("topk:0.01"), (Counts{0, 0, 3, 3, 5, 6}));
  EXPECT_EQ(emitted("topk:0.01,scope=global"), (Counts{0, 0, 0, 0, 0, 6}));
  EXPECT_EQ(emitted("int8:feedback=on"), (Counts{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(emitted("bf16"), (Counts{1, 2, 3, 4, 5, 6}));
}

TEST(ReplyEncoder, StochasticRoundingRepeatsItsBitsAndDiffersByRound) {
  Fixture one("int8:rounding=stochastic"), two("int8:rounding=stochastic");
  EXPECT_FALSE(one.encoder->stores_residual());
  const auto first = one.encode(Round(1), one.mean(1));
  EXPECT_EQ(two.encode(Round(1), two.mean(1)), first);
  EXPECT_NE(two.encode(Round(2), two.mean(1)), first);
}

TEST(ReplyEncoder, EncodersOfSomeUnitsEachSendWhatOneOfAllDoes) {
  for (const std::string spec :
       {"topk:0.05,warmup=3", "int8:feedback=on", "sign", "bf16", "int8:rounding=stochastic"}) {
    SCOPED_TRACE(spec);
    Fixture whole(spec), first(spec), second(spec);
    for (std::uint64_t round = 1; round <= 6; ++round) {
      const auto mean = whole.mean(round);
      const auto expected = whole.encode(Round(round), mean);
      whole.commit();
      std::map<ChunkId, std::vector<std::byte>> sent;
      for (Fixture* one : {&first, &second}) {
        one->encoder->begin(Round(round));
        one->spare = mean;
        for (const Chunk& chunk : one->plan.chunks()) {
          const bool is_second = one->encoder->unit_of(chunk.id).first.value % 2 == 1;
          if (is_second != (one == &second) || (round == 4 && one == &second)) continue;
          const auto emit = [&](const Chunk& of, std::vector<std::byte> payload) {
            sent[of.id] = std::move(payload);
          };
          EXPECT_TRUE(one->encoder->complete(chunk.id, one->memory(), emit).ok());
        }
        if (round == 4 && one == &second) {  // a round without a chunk of it counts all the same
          one->encoder->commit();
          EXPECT_EQ(one->encoder->rounds(), whole.encoder->rounds());
          continue;
        }
        one->commit();
      }
      if (round == 4) break;
      EXPECT_EQ(sent, expected);
    }
  }
}

TEST(ReplyEncoder, AMeanThatIsNotFiniteArrivesAndTheResidualStaysFinite) {
  Fixture f("topk:0.02");
  auto mean = f.mean(1);
  mean[710] = std::numeric_limits<float>::infinity();
  const auto sent = f.decode(f.encode(Round(1), mean));
  EXPECT_EQ(sent[710], mean[710]);
  f.commit();
  EXPECT_TRUE(std::ranges::all_of(f.residual, [](float v) { return std::isfinite(v); }));
}

TEST(ReplyEncoder, MomentumAndClippingAreTheWorkers) {
  const ChunkPlan plan = Fixture("topk:0.1").plan;
  for (const std::string spec : {"topk:0.1,momentum=0.9", "topk:0.1,clip=1"}) {
    const auto made = ReplyEncoder::make(spec, plan, 1);
    ASSERT_FALSE(made.ok()) << spec;
    EXPECT_THAT(made.error().message(), HasSubstr("for a worker's gradients"));
  }
}

}  // namespace
}  // namespace centroid::server::reply_encoder_test
