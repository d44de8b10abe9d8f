#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/aggregate/aggregator.h"
#include "server/aggregate/round_machine.h"

/// Numbers that coordinators of the field are checked with, here where the same is decided.
namespace centroid::server {
namespace {

using ::testing::ElementsAre;

const MemberId kA(1), kB(2), kC(3);

/// The mean that the server makes of contributions with their weights.
std::vector<float> mean(const std::vector<std::vector<float>>& all, std::vector<double> weights) {
  const std::size_t n = all.front().size();
  const auto plan =
      ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {n}}}, 64).value();
  std::vector<float> sum(n);
  double total = 0;
  Aggregator::Hooks hooks;
  hooks.target = [&](const Chunk& chunk) {
    return std::span(sum).subspan(chunk.position, chunk.elements);
  };
  hooks.is_held = [](ChunkId) { return false; };
  hooks.on_complete = [&](ChunkId, double weight) { total = weight; };
  hooks.on_consumed = [](std::uint32_t, std::size_t) {};
  Aggregator aggregator(plan, true, std::move(hooks));
  const std::shared_ptr<const Codec> codec = make_codec("f32").value();
  aggregator.begin(std::vector<std::shared_ptr<const Codec>>(all.size(), codec));
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) {
    Buffer payload(n * sizeof(float));
    std::memcpy(payload.data(), all[rank].data(), payload.size());
    const std::size_t bytes = payload.size();
    EXPECT_TRUE(aggregator.offer(rank, ChunkId(0), weights[rank], std::move(payload), bytes).ok());
  }
  for (float& x : sum) x /= static_cast<float>(total);
  return sum;
}

TEST(Mean, OfKnownContributions) {
  EXPECT_THAT(mean({{2, 4, 6}, {4, 6, 8}, {6, 8, 10}}, {1, 1, 1}), ElementsAre(4, 6, 8));
  EXPECT_THAT(mean({{2, 4, 6}}, {1}), ElementsAre(2, 4, 6));
  EXPECT_THAT(mean({{1}, {5}}, {1, 3}), ElementsAre(4));  // one step and three
  EXPECT_THAT(mean({{1}, {3}}, {1, 1}), ElementsAre(2));
  EXPECT_THAT(mean({{2}, {4}}, {1, 1}), ElementsAre(3));
  EXPECT_THAT(mean({{7}}, {5}), ElementsAre(7));  // the only one that is left
  // Micro-batches 1 to 4: element i is 2.5 (i + 1).
  std::vector<std::vector<float>> micro;
  for (int k = 1; k <= 4; ++k)
    micro.push_back({static_cast<float>(k), static_cast<float>(2 * k), static_cast<float>(3 * k)});
  EXPECT_THAT(mean(micro, {1, 1, 1, 1}), ElementsAre(2.5f, 5, 7.5f));
}

TEST(Mean, WhatIsNotFiniteStaysSo) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const auto one = mean({{1, 2, 3}, {nan, 2, 3}}, {1, 1});
  EXPECT_TRUE(std::isnan(one[0]));
  EXPECT_EQ(one[1], 2);
  EXPECT_EQ(one[2], 3);
  EXPECT_EQ(mean({{1}, {inf}}, {1, 1})[0], inf);
  EXPECT_TRUE(std::isnan(mean({{nan}, {inf}}, {1, 1})[0]));
}

/// Ten samples on three members are the gradient of the ten: 3, 3 and 4, each a mean.
TEST(Mean, OfUnequalSharesIsTheMeanOfAllSamples) {
  std::vector<double> samples;
  for (int i = 0; i < 10; ++i) samples.push_back(std::sin(3.0 * i));
  double whole = 0;
  for (const double x : samples) whole += x / 10;
  std::vector<std::vector<float>> shares;
  std::size_t at = 0;
  for (const std::size_t size : {3u, 3u, 4u}) {
    double part = 0;
    for (std::size_t i = 0; i < size; ++i) part += samples[at++] / static_cast<double>(size);
    shares.push_back({static_cast<float>(part)});
  }
  EXPECT_NEAR(mean(shares, {3, 3, 4})[0], whole, 1e-6);
  EXPECT_GT(std::abs(static_cast<double>(mean(shares, {1, 1, 1})[0]) - whole), 1e-3);  // unweighted
}

RoundMachine machine(const std::string& policy) {
  RoundPolicy out;
  EXPECT_TRUE(parse_policy(policy, "drop", out).ok());
  return RoundMachine(out);
}

RoundAction contribute(RoundMachine& rounds, MemberId member) {
  Contribution contribution;
  contribution.weight = 1;
  return rounds.contribute(member, contribution).value().action;
}

/// An average needs every member's batch; after one left, those of the others.
TEST(Control, SyncClosesWhenEveryMemberHasMadeItsBatch) {
  RoundMachine rounds = machine("bsp");
  rounds.open(Round(1), 0, {kA, kB, kC});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  EXPECT_EQ(contribute(rounds, kC), RoundAction::kWait);
  EXPECT_EQ(contribute(rounds, kB), RoundAction::kMerge);
  rounds.open(Round(2), 0, {kA, kB, kC});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  EXPECT_EQ(contribute(rounds, kB), RoundAction::kWait);
  EXPECT_EQ(rounds.gone(kC, Progress::kNothing).action, RoundAction::kMerge);
}

/// Who is more than the limit ahead waits, is released by the slowest's step, and 0 is lockstep.
TEST(Control, ALeadIsThrottledAndReleased) {
  RoundMachine rounds = machine("ssp:3");
  std::uint64_t round = 0;
  const auto step = [&](MemberId member) {
    rounds.open(Round(++round), 0, {kA, kB});
    EXPECT_EQ(contribute(rounds, member), RoundAction::kMerge);
    rounds.forgive(kA);
    rounds.forgive(kB);
  };
  for (std::uint64_t lead = 1; lead <= 3; ++lead) {
    step(kA);
    EXPECT_EQ(rounds.steps_ahead(kA), lead);
    EXPECT_TRUE(rounds.may_begin(kA)) << lead;
  }
  step(kA);
  EXPECT_FALSE(rounds.may_begin(kA));
  EXPECT_TRUE(rounds.may_begin(kB));
  step(kB);
  EXPECT_TRUE(rounds.may_begin(kA));

  RoundMachine lockstep = machine("ssp:0");
  lockstep.open(Round(1), 0, {kA, kB});
  EXPECT_EQ(contribute(lockstep, kA), RoundAction::kMerge);
  EXPECT_FALSE(lockstep.may_begin(kA));
}

/// What was lost half-way is repeated in a new attempt of the same round, and only once counted.
TEST(Control, AnAbortedAttemptLeavesNothingBehind) {
  RoundMachine rounds = machine("bsp");
  rounds.open(Round(5), 0, {kA, kB});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  EXPECT_EQ(rounds.gone(kB, Progress::kPart).action, RoundAction::kRetry);
  EXPECT_FALSE(rounds.is_open());
  Contribution late;
  late.weight = 999;
  EXPECT_EQ(rounds.contribute(kB, late).error().code(), ErrorCode::kAborted);  // before
  rounds.open(Round(5), 1, {kA});
  EXPECT_EQ(rounds.contribute(kB, late).error().code(), ErrorCode::kAborted);  // and after
  Contribution mine;
  mine.weight = 2;
  const auto decision = rounds.contribute(kA, mine).value();
  EXPECT_EQ(decision.action, RoundAction::kMerge);
  EXPECT_EQ(decision.total_weight, 2);
  EXPECT_THAT(decision.contributors, ElementsAre(kA));
  EXPECT_EQ(rounds.contribute(kA, mine).error().code(), ErrorCode::kAborted);  // twice
}

}  // namespace
}  // namespace centroid::server
