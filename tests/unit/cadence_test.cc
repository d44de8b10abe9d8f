#include "server/coordinate/cadence.h"

#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/coordinate/partition.h"

namespace centroid::server {
namespace {

using ::testing::ElementsAre;

const std::vector<MemberId> kTwo{MemberId(1), MemberId(2)};
const std::vector<MemberId> kThree{MemberId(1), MemberId(2), MemberId(3)};

Cadence::Options of(std::uint64_t initial, std::uint64_t most = 200) {
  Cadence::Options options;
  options.initial = initial;
  options.most = most;
  options.overhead = options.dead_zone = 0.10;  // those of the field, which the numbers are for
  return options;
}

TEST(SmoothedTime, BelievesTheFirstAndJumpsAndNotNoise) {
  SmoothedTime time;
  EXPECT_FALSE(time.is_known());
  time.observe(100);
  EXPECT_EQ(time.seconds(), 100);
  time.observe(105);  // 5 %: a tenth of the difference
  EXPECT_NEAR(time.seconds(), 100.5, 1e-12);
  SmoothedTime other;
  other.observe(100);
  other.observe(1000);  // nine times away: at most 0.8 of the difference
  EXPECT_NEAR(other.seconds(), 820, 1e-9);
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) other.observe(bad);
  EXPECT_NEAR(other.seconds(), 820, 1e-9);
}

TEST(Cadence, TheFasterMakesMoreStepsInTheSameTime) {
  Cadence two(of(10));
  two.worked(kTwo[0], 10, 0.5);
  two.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(two.plan(kTwo), ElementsAre(20, 10));
  Cadence three(of(10));
  three.worked(kThree[0], 10, 0.333);
  three.worked(kThree[1], 10, 0.5);
  three.worked(kThree[2], 10, 1.0);
  EXPECT_THAT(three.plan(kThree), ElementsAre(30, 20, 10));
}

/// What is given is in no unit; who has been measured says what it is.
TEST(Cadence, WhatIsGivenCountsUntilItIsMeasured) {
  Cadence hinted(of(10));
  hinted.hint(kThree[0], 1.0);
  hinted.hint(kThree[1], 2.3);
  EXPECT_THAT(hinted.plan(kTwo), ElementsAre(23, 10));
  EXPECT_FALSE(hinted.is_known(kTwo[0]));
  EXPECT_EQ(hinted.seconds_per_step(kTwo[0]), 0);
  hinted.worked(kThree[0], 23, 0.023);  // a ms a step: so 2.3 ms are given for the other
  EXPECT_THAT(hinted.plan(kTwo), ElementsAre(23, 10));
  hinted.worked(kThree[1], 10, 0.0245);  // 2.45 times: in the dead zone of what was given
  EXPECT_THAT(hinted.plan(kTwo), ElementsAre(23, 10));
  hinted.worked(kThree[2], 10, 0.01);  // of whom nothing was given
  EXPECT_THAT(hinted.plan(kThree), ElementsAre(23, 10, 24));
  Cadence wrong(of(10));
  wrong.hint(kTwo[0], 1.0);
  wrong.hint(kTwo[1], 2.3);
  wrong.worked(kTwo[0], 23, 0.023);
  wrong.worked(kTwo[1], 10, 0.01);
  EXPECT_THAT(wrong.plan(kTwo), ElementsAre(10, 10));
  wrong.hint(kTwo[1], 5);  // too late
  EXPECT_THAT(wrong.plan(kTwo), ElementsAre(10, 10));
  Cadence foreign(of(10));  // of those with a hint nobody is measured: it says nothing
  foreign.hint(kTwo[0], 1.0);
  foreign.worked(kTwo[1], 10, 0.01);
  EXPECT_THAT(foreign.plan(kTwo), ElementsAre(4, 10));
}

TEST(Cadence, WhoHasNoPastIsTriedWithFewSteps) {
  Cadence cadence(of(10));
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(4, 4));
  cadence.worked(kTwo[0], 4, 0.4);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(10, 4));
  Cadence few(of(2));
  EXPECT_THAT(few.plan(kTwo), ElementsAre(2, 2));
}

TEST(Cadence, ADearExchangeMakesTheRoundsLonger) {
  Cadence cadence(of(10));
  cadence.worked(kTwo[0], 20, 1.0);
  cadence.worked(kTwo[1], 10, 1.0);
  cadence.exchanged(0.5);  // half of a second's work, a tenth is wanted
  EXPECT_EQ(cadence.anchor(), 50u);
  EXPECT_NEAR(cadence.overhead(), 0.1, 1e-12);
  Cadence other(of(10));
  other.worked(kTwo[0], 20, 1.0);
  other.worked(kTwo[1], 10, 1.0);
  other.exchanged(0.4);
  EXPECT_THAT(other.plan(kTwo), ElementsAre(80, 40));
  Cadence capped(of(10, 30));
  capped.worked(kTwo[0], 10, 1.0);
  capped.exchanged(0.5);
  EXPECT_EQ(capped.anchor(), 30u);
  Cadence cheap(of(10));
  cheap.worked(kTwo[0], 10, 1.0);
  cheap.exchanged(0.01);
  EXPECT_EQ(cheap.anchor(), 10u);
}

TEST(Cadence, ACheapExchangeMakesThemShorterAgainStepByStep) {
  Cadence cadence(of(10));
  cadence.worked(kTwo[0], 10, 1.0);
  cadence.exchanged(0.5);
  ASSERT_EQ(cadence.anchor(), 50u);
  std::uint64_t before = cadence.anchor();
  for (int round = 0; round < 200; ++round) {
    cadence.exchanged(0.001);
    EXPECT_LE(before - cadence.anchor(), 1u);
    before = cadence.anchor();
  }
  EXPECT_EQ(cadence.anchor(), 10u);
}

TEST(Cadence, NothingMeasuredChangesNothing) {
  Cadence cadence(of(10));
  cadence.exchanged(0.5);  // no work to compare with
  EXPECT_EQ(cadence.anchor(), 10u);
  cadence.worked(kTwo[0], 10, 1.0);
  cadence.exchanged(0.0);  // no measurement: the one before stands
  EXPECT_EQ(cadence.anchor(), 50u);
  Cadence fixed([] {
    Cadence::Options options = of(10);
    options.tunes = false;
    return options;
  }());
  fixed.worked(kTwo[0], 10, 1.0);
  fixed.exchanged(5);
  EXPECT_EQ(fixed.anchor(), 10u);
  EXPECT_NEAR(fixed.overhead(), 5, 1e-12);
}

/// From a hundredth to a half: 0.005 is as 0.01, 0.9 as 0.5.
TEST(Cadence, AnOverheadBeyondItsBoundsIsTheBound) {
  const auto anchor_at = [](double target, double exchange) {
    Cadence::Options options = of(10);
    options.overhead = target;
    Cadence cadence(options);
    cadence.worked(kTwo[0], 10, 1.0);
    cadence.exchanged(exchange);
    return cadence.anchor();
  };
  EXPECT_EQ(anchor_at(0.005, 0.02), 20u);
  EXPECT_EQ(anchor_at(0.01, 0.02), 20u);
  EXPECT_EQ(anchor_at(0.02, 0.04), 20u);
  EXPECT_EQ(anchor_at(0.9, 0.9), 18u);
  EXPECT_EQ(anchor_at(0.5, 0.9), 18u);
}

TEST(Cadence, ANudgeReachesTheNextPlanAndNeverGoesUp) {
  Cadence cadence(of(20));
  cadence.worked(kTwo[0], 20, 1.0);
  cadence.worked(kTwo[1], 20, 2.0);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(40, 20));
  cadence.nudge_down(0.5);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(20, 10));
  cadence.nudge_down(3);
  EXPECT_EQ(cadence.anchor(), 10u);
  for (int i = 0; i < 20; ++i) cadence.nudge_down(0.1);
  EXPECT_EQ(cadence.anchor(), 1u);
}

TEST(Cadence, HeldGrowthStaysHeld) {
  Cadence cadence(of(10));
  cadence.worked(kTwo[0], 10, 1.0);
  cadence.pause_growth(true);
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 10u);
  cadence.pause_growth(false);
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 50u);
}

/// Two members at 1:2 that have 90 samples a round: 30 steps of the slower one, though the cost of
/// the exchange asks for 50; half of them at once when they are to be fewer.
TEST(Cadence, GrowsNoFurtherThanThereIsData) {
  const std::vector<std::uint64_t> ones{1, 1}, four{1, 4};
  const RoundData ninety{.batches = ones, .samples = 90}, fifteen{.batches = ones, .samples = 15};
  Cadence cadence(of(10));
  cadence.worked(kTwo[0], 10, 0.5);
  cadence.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(cadence.plan(kTwo, ninety), ElementsAre(20, 10));
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 30u);
  EXPECT_THAT(cadence.plan(kTwo, ninety), ElementsAre(60, 30));
  EXPECT_THAT(cadence.plan(kTwo, {.batches = four, .samples = 90}), ElementsAre(30, 15));
  cadence.nudge_down(0.5);  // of what they make
  EXPECT_THAT(cadence.plan(kTwo, ninety), ElementsAre(16, 8));
  cadence.exchanged(0.5);
  ASSERT_EQ(cadence.anchor(), 30u);
  EXPECT_THAT(cadence.plan(kTwo, fifteen), ElementsAre(10, 5));
  EXPECT_NEAR(cadence.overhead(), 1.0, 1e-12);  // of what they make
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 5u);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(60, 30));  // there is no end of it any more
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 50u);

  Cadence::Options options = of(10);
  options.tunes = false;
  Cadence given(options);
  given.worked(kTwo[0], 10, 0.5);
  given.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(given.plan(kTwo, fifteen), ElementsAre(20, 10));  // divided in proportion elsewhere
  options.tunes = true;
  options.max_lead = 0;  // one as the other: there is room for more
  Cadence lockstep(options);
  lockstep.worked(kTwo[0], 10, 0.5);
  lockstep.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(lockstep.plan(kTwo, fifteen), ElementsAre(7, 7));
}

/// A worker that is slow for a while leaves the others' data in fewer of its steps; when it is as
/// fast as before, the rounds are as long as before, though the exchange asks for nothing.
TEST(Cadence, RoundsAreAsLongAsBeforeWhenASlowMemberRecovers) {
  const std::vector<std::uint64_t> ones{1, 1};
  const RoundData data{.batches = ones, .samples = 100};
  Cadence cadence(of(10));
  const auto work = [&](double slowdown) {
    for (int i = 0; i < 100; ++i) cadence.worked(kTwo[1], 10, slowdown);
    return cadence.plan(kTwo, data);
  };
  cadence.worked(kTwo[0], 10, 1.0);
  ASSERT_THAT(work(1), ElementsAre(10, 10));
  cadence.exchanged(0.4);
  ASSERT_THAT(work(1), ElementsAre(40, 40));
  EXPECT_THAT(work(9), ElementsAre(90, 10));
  EXPECT_EQ(cadence.anchor(), 10u);
  EXPECT_THAT(work(1), ElementsAre(40, 40));

  ASSERT_THAT(work(9), ElementsAre(90, 10));
  cadence.pause_growth(true);  // that they drift apart holds them where they are
  EXPECT_THAT(work(1), ElementsAre(10, 10));
  cadence.pause_growth(false);
  EXPECT_THAT(work(1), ElementsAre(40, 40));
}

TEST(Cadence, ALeadBoundsHowFarOneIsAheadAndHowFastThatChanges) {
  Cadence::Options options = of(10);
  options.max_lead = 3;
  Cadence cadence(options);
  cadence.worked(kTwo[0], 10, 0.1);
  cadence.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(13, 10));
  options.max_lead = 0;  // lockstep
  Cadence lockstep(options);
  lockstep.worked(kTwo[0], 10, 0.1);
  lockstep.worked(kTwo[1], 10, 1.0);
  EXPECT_THAT(lockstep.plan(kTwo), ElementsAre(10, 10));

  // Tuned from 10 to 50: three more a round, though all at once would do; then, as the fast one
  // turns slow and the rounds get shorter, three fewer: 50, where its speed says 49.
  options.max_lead = 3;
  Cadence slow(options);
  slow.worked(kTwo[0], 10, 0.5);
  slow.worked(kTwo[1], 10, 1.0);
  ASSERT_THAT(slow.plan(kTwo), ElementsAre(13, 10));
  slow.exchanged(0.5);
  ASSERT_EQ(slow.anchor(), 50u);
  EXPECT_THAT(slow.plan(kTwo), ElementsAre(16, 13));
  for (int i = 0; i < 20; ++i) slow.plan(kTwo);
  ASSERT_THAT(slow.plan(kTwo), ElementsAre(53, 50));
  for (int i = 0; i < 90; ++i) slow.worked(kTwo[0], 10, 1.0);
  while (slow.anchor() == 50) slow.exchanged(0.001);
  EXPECT_THAT(slow.plan(kTwo), ElementsAre(50, 49));
  EXPECT_THAT(slow.plan(kTwo), ElementsAre(49, 49));
}

/// Who begins at another time counts, and its number changes by no more than the lead from one time
/// that it begins to the next, however often the others have begun meanwhile.
TEST(Cadence, TheLeadIsOfThoseWhoBegin) {
  Cadence::Options options = of(10);
  options.max_lead = 3;
  Cadence cadence(options);
  cadence.worked(kTwo[0], 10, 1.0);
  cadence.worked(kTwo[1], 10, 1.0);
  ASSERT_THAT(cadence.plan(kTwo), ElementsAre(10, 10));
  cadence.exchanged(0.5);
  ASSERT_EQ(cadence.anchor(), 50u);
  const std::span one = std::span(kTwo).first(1);
  for (int i = 0; i < 20; ++i) cadence.plan(kTwo, {}, one);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(16, 13));  // nor by more than that ahead of the other
}

/// That they drift apart makes the rounds shorter by no more than the lead at once: from 50 to 47.
/// It goes by what is made, not by where that is to go.
TEST(Cadence, ALeadBoundsHowFastTheRoundsGetShorter) {
  Cadence::Options options = of(50);
  options.max_lead = 3;
  const auto begin = [&](double pace) {
    Cadence cadence(options);
    cadence.worked(kTwo[0], 10, pace);
    cadence.worked(kTwo[1], 10, 1.0);
    return cadence;
  };
  Cadence nudged = begin(0.5);
  ASSERT_THAT(nudged.plan(kTwo), ElementsAre(53, 50));
  nudged.nudge_down(0.5);
  EXPECT_EQ(nudged.anchor(), 47u);
  EXPECT_THAT(nudged.plan(kTwo), ElementsAre(50, 47));
  nudged.nudge_down(0.99);  // by less
  EXPECT_THAT(nudged.plan(kTwo), ElementsAre(50, 47));
  nudged.nudge_down(0.1);
  EXPECT_THAT(nudged.plan(kTwo), ElementsAre(47, 44));

  Cadence limited = begin(0.5);
  ASSERT_THAT(limited.plan(kTwo), ElementsAre(53, 50));
  for (const std::uint64_t expected : {47u, 45u, 45u}) {
    limited.limit(45);
    EXPECT_THAT(limited.plan(kTwo), ElementsAre(expected + 3, expected));
  }

  options = of(10);
  options.max_lead = 3;
  Cadence climbing = begin(1.0);
  ASSERT_THAT(climbing.plan(kTwo), ElementsAre(10, 10));
  climbing.exchanged(0.5);
  ASSERT_EQ(climbing.anchor(), 50u);
  ASSERT_THAT(climbing.plan(kTwo), ElementsAre(13, 13));
  climbing.nudge_down(0.5);
  EXPECT_EQ(climbing.anchor(), 10u);

  options.max_lead = 0;  // all the same, however much that is
  Cadence lockstep = begin(1.0);
  ASSERT_THAT(lockstep.plan(kTwo), ElementsAre(10, 10));
  lockstep.nudge_down(0.5);
  EXPECT_THAT(lockstep.plan(kTwo), ElementsAre(5, 5));
}

/// Who is new makes, once it is measured, no number far from those of the others, either.
TEST(Cadence, ALeadHoldsForNewcomers) {
  Cadence::Options options = of(50);
  options.max_lead = 3;
  Cadence cadence(options);
  for (const MemberId member : kTwo) cadence.worked(member, 10, 1.0);
  ASSERT_THAT(cadence.plan(kTwo), ElementsAre(50, 50));
  ASSERT_THAT(cadence.plan(kThree), ElementsAre(50, 50, 4));
  cadence.worked(kThree[2], 4, 0.1);  // four times as fast
  EXPECT_THAT(cadence.plan(kThree), ElementsAre(50, 50, 53));
}

/// What a round made that was short for want of data is no reason to make the next ones shorter:
/// they are as long as before when there is data for it again.
TEST(Cadence, TheAnchorIsKeptWhileTheDataBoundsIt) {
  const std::vector<std::uint64_t> ones{1, 1};
  Cadence cadence(of(10));
  for (const MemberId member : kTwo) cadence.worked(member, 10, 1.0);
  cadence.exchanged(0.4);
  ASSERT_THAT(cadence.plan(kTwo), ElementsAre(40, 40));
  for (int i = 0; i < 20; ++i) {
    ASSERT_THAT(cadence.plan(kTwo, {.batches = ones, .samples = 50}), ElementsAre(25, 25)) << i;
    cadence.exchanged(0.01);
  }
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(40, 40));
  cadence.exchanged(0.01);
  EXPECT_EQ(cadence.anchor(), 39u);  // one by one, while there is
}

TEST(Cadence, SmallChangesOfSpeedLeaveThePlanAsItIs) {
  Cadence cadence(of(100, 1000));
  cadence.worked(kTwo[0], 1, 1.0);
  cadence.worked(kTwo[1], 1, 2.0);
  const auto plan = cadence.plan(kTwo);
  EXPECT_THAT(plan, ElementsAre(200, 100));
  for (int i = 0; i < 50; ++i) cadence.worked(kTwo[0], 1, 1.09);
  EXPECT_EQ(cadence.plan(kTwo), plan);
  for (int i = 0; i < 50; ++i) cadence.worked(kTwo[0], 1, 1.25);
  EXPECT_THAT(cadence.plan(kTwo), ElementsAre(160, 100));
}

TEST(Cadence, WhoWentIsNotTheSlowestAnyMore) {
  Cadence cadence(of(10));
  cadence.worked(kTwo[0], 10, 1.0);
  cadence.worked(kTwo[1], 10, 100.0);
  cadence.gone(kTwo[1]);
  const std::vector<MemberId> left{kTwo[0]};
  EXPECT_THAT(cadence.plan(left), ElementsAre(10));
  cadence.exchanged(0.5);
  EXPECT_EQ(cadence.anchor(), 50u);
}

/// Whatever comes: at least a step each, the anchor within its bounds, and equal time for all.
TEST(Cadence, RandomSpeedsKeepTheBounds) {
  const std::uint64_t seed = 20261121;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t count = 1 + rng.below(8);
    Cadence cadence(of(1 + rng.below(30), 31 + rng.below(300)));
    std::vector<MemberId> members;
    std::vector<double> pace;
    for (std::size_t i = 0; i < count; ++i) {
      members.emplace_back(i + 1);
      pace.push_back(std::exp(4 * rng.uniform() - 2));
    }
    for (int round = 0; round < 30; ++round) {
      const auto steps = cadence.plan(members);
      ASSERT_EQ(steps.size(), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_GE(steps[i], 1u);
      const double slowest = *std::max_element(pace.begin(), pace.end());
      // Measured exactly, nobody needs longer than the slowest and half a step.
      for (std::size_t i = 0; i < count && round > 0; ++i) {
        ASSERT_LE(static_cast<double>(steps[i]) * pace[i],
                  static_cast<double>(cadence.anchor()) * slowest + pace[i])
            << "trial " << trial;
      }
      for (std::size_t i = 0; i < count; ++i)
        cadence.worked(members[i], static_cast<double>(steps[i]),
                       static_cast<double>(steps[i]) * pace[i]);
      cadence.exchanged(rng.uniform());
      ASSERT_LE(cadence.anchor(), 331u);
    }
  }
}

std::vector<std::uint64_t> parts(std::uint64_t total, std::vector<double> weights) {
  return partition(total, weights);
}

TEST(Partition, FollowsTheWeights) {
  EXPECT_THAT(parts(900, {3, 2, 1}), ElementsAre(450, 300, 150));
  EXPECT_THAT(parts(1000, {1, 1}), ElementsAre(500, 500));
  EXPECT_THAT(parts(100, {1, 1, 1}), ElementsAre(34, 33, 33));
  EXPECT_THAT(parts(100, {1}), ElementsAre(100));
  EXPECT_THAT(parts(100, {0, 0}), ElementsAre(50, 50));
  EXPECT_THAT(parts(10, {.5, .5}), ElementsAre(5, 5));
  EXPECT_THAT(parts(11, {.5, .5}), ElementsAre(6, 5));
  EXPECT_THAT(parts(3, {.5, .5}), ElementsAre(2, 1));
  EXPECT_THAT(parts(10, {.7, .3}), ElementsAre(7, 3));
  EXPECT_THAT(parts(100, {.7, .3}), ElementsAre(70, 30));
  EXPECT_THAT(parts(10, {.5, .3, .2}), ElementsAre(5, 3, 2));
  EXPECT_THAT(parts(1000, {1 / 5.0, 1 / 10.0}), ElementsAre(667, 333));
  EXPECT_THAT(parts(0, {1, 2}), ElementsAre(0, 0));
  EXPECT_THAT(parts(5, {1, 0}), ElementsAre(5, 0));
  EXPECT_TRUE(parts(5, {}).empty());
}

TEST(Partition, IsCompleteAndFairForRandomWeights) {
  const std::uint64_t seed = 4711;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> weights(1 + rng.below(9));
    for (double& w : weights) w = rng.below(5) == 0 ? 0 : std::exp(20 * rng.uniform() - 10);
    if (rng.below(20) == 0) weights.front() = HUGE_VAL;  // not usable: equal parts
    const std::uint64_t total = rng.below(4) == 0 ? rng.below(4) : rng.below(1'000'000'000);
    const auto out = partition(total, weights);
    ASSERT_EQ(std::accumulate(out.begin(), out.end(), std::uint64_t{0}), total);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t i = 0; i < out.size() && std::isfinite(sum) && sum > 0; ++i)
      ASSERT_NEAR(static_cast<double>(out[i]), static_cast<double>(total) * weights[i] / sum, 1.01);
  }
}

}  // namespace
}  // namespace centroid::server
