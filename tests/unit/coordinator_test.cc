#include "server/coordinate/coordinator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/coordinate/reported_steps.h"
#include "server/coordinate/returned_shares.h"

namespace centroid::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Verdict = DivergenceGuard::Verdict;

Verdict observe(DivergenceGuard& guard, std::vector<double> divergences) {
  return guard.observe(divergences);
}

TEST(DivergenceGuard, ThreeRisingHoldGrowthAndAFourthNudgesDown) {
  DivergenceGuard guard(0.01);
  EXPECT_EQ(observe(guard, {0.02, 0.001}), Verdict::kStable);
  EXPECT_EQ(observe(guard, {0.03}), Verdict::kStable);
  EXPECT_EQ(observe(guard, {0.001, 0.04}), Verdict::kSuppressGrowth);
  EXPECT_EQ(observe(guard, {0.05}), Verdict::kNudgeDown);
  EXPECT_EQ(observe(guard, {0.06}), Verdict::kStable);  // begins anew
  EXPECT_EQ(observe(guard, {0.07}), Verdict::kSuppressGrowth);
  EXPECT_EQ(observe(guard, {0.07}), Verdict::kStable);  // as before: not rising
}

TEST(DivergenceGuard, RisingBelowTheThresholdIsStable) {
  DivergenceGuard guard(0.01);
  for (int i = 1; i <= 8; ++i) EXPECT_EQ(observe(guard, {0.001 * i}), Verdict::kStable);
  DivergenceGuard off(0);
  for (int i = 1; i <= 8; ++i) EXPECT_EQ(observe(off, {1.0 * i}), Verdict::kStable);
  EXPECT_EQ(observe(off, {}), Verdict::kStable);
}

TEST(DivergenceGuard, ParametersThatAreNotFiniteAreAsFarAsCanBe) {
  DivergenceGuard guard(0.01);
  observe(guard, {0.02});
  observe(guard, {0.03});
  EXPECT_EQ(observe(guard, {std::nan(""), 0.001}), Verdict::kSuppressGrowth);
}

Coordinator::Options tuned(std::uint64_t initial) {
  Coordinator::Options options;
  options.mode = Coordinator::Mode::kTuned;
  options.cadence.initial = initial;
  options.cadence.overhead = options.cadence.dead_zone = 0.10;  // those of the field
  return options;
}

TEST(Coordinator, OffGivesEverybodyTheSame) {
  Coordinator::Options options = tuned(7);
  options.mode = Coordinator::Mode::kOff;
  Coordinator coordinator(options);
  const std::vector<MemberId> members{MemberId(1), MemberId(2)};
  coordinator.contributed(members[0], {.steps = 7, .compute_seconds = 1});
  coordinator.contributed(members[1], {.steps = 7, .compute_seconds = 3, .exchange_seconds = 9});
  coordinator.round_over();
  EXPECT_THAT(coordinator.plan(members), ElementsAre(7, 7));
}

TEST(Coordinator, GivenSpeedsCountInsteadOfMeasuredOnes) {
  Coordinator::Options options = tuned(10);
  options.mode = Coordinator::Mode::kSpeed;
  options.ratios = parse_ratios("3,2,1").value();
  Coordinator coordinator(options);
  const std::vector<MemberId> members{MemberId(1), MemberId(2), MemberId(3), MemberId(4)};
  for (const MemberId member : members)
    coordinator.contributed(member, {.steps = 10, .compute_seconds = 1});
  EXPECT_THAT(coordinator.plan(members), ElementsAre(30, 20, 10, 10));
  EXPECT_THAT(parse_ratios("3,,1").error().message(), HasSubstr("speeds by rank"));
  for (const char* const bad : {"x", "1,", "0", "-1", "1;2", "nan", "1e9"})
    EXPECT_FALSE(parse_ratios(bad).ok()) << bad;
  EXPECT_TRUE(parse_ratios("").value().empty());
}

/// The exchange's time is that of who came last: the others have waited for it.
/// The lead holds for given speeds as for measured ones, in each mode.
TEST(Coordinator, ALeadBoundsGivenSpeeds) {
  const std::vector<MemberId> members{MemberId(1), MemberId(2), MemberId(3)};
  for (const auto mode : {Coordinator::Mode::kSpeed, Coordinator::Mode::kTuned}) {
    Coordinator::Options options = tuned(10);
    options.mode = mode;
    options.ratios = {3, 2, 1};
    options.cadence.max_lead = 4;
    Coordinator bounded(options);
    EXPECT_THAT(bounded.plan(members), ElementsAre(14, 14, 10));
    EXPECT_THAT(bounded.plan(members), ElementsAre(14, 14, 10));
    options.cadence.max_lead = 0;
    Coordinator lockstep(options);
    EXPECT_THAT(lockstep.plan(members), ElementsAre(10, 10, 10));
  }
}

/// With `tuned` given speeds are where it begins: nobody is tried with few steps. Those measured
/// take their place, unless they are the same but for the dead zone.
TEST(Coordinator, GivenSpeedsAreOnlyTheFirst) {
  Coordinator::Options options = tuned(10);
  options.ratios = {3, 2};
  const std::vector<MemberId> members{MemberId(1), MemberId(2), MemberId(3)};
  const auto after = [&](double second) {
    Coordinator coordinator(options);
    EXPECT_THAT(coordinator.plan(members), ElementsAre(15, 10, 10));
    coordinator.contributed(members[0], {.steps = 15, .compute_seconds = 1});
    coordinator.contributed(members[1], {.steps = 10, .compute_seconds = second});
    coordinator.contributed(members[2], {.steps = 10, .compute_seconds = 1});
    coordinator.round_over();
    return coordinator.plan(members);
  };
  EXPECT_THAT(after(1), ElementsAre(15, 10, 10));
  EXPECT_THAT(after(1.05), ElementsAre(15, 10, 10));
  EXPECT_THAT(after(2), ElementsAre(30, 10, 20));
  options.mode = Coordinator::Mode::kSpeed;
  EXPECT_THAT(after(2), ElementsAre(15, 10, 10));
}

TEST(Coordinator, WaitingForTheSlowestIsNoCostOfTheExchange) {
  Coordinator coordinator(tuned(10));
  const std::vector<MemberId> members{MemberId(1), MemberId(2)};
  coordinator.contributed(members[0],
                          {.steps = 10, .compute_seconds = 0.5, .exchange_seconds = 0.55});
  coordinator.contributed(members[1],
                          {.steps = 10, .compute_seconds = 1.0, .exchange_seconds = 0.05});
  coordinator.round_over();
  EXPECT_NEAR(coordinator.cadence().exchange_seconds(), 0.05, 1e-12);
  EXPECT_EQ(coordinator.cadence().anchor(), 10u);
}

TEST(Coordinator, ParametersThatDriftApartShortenTheRounds) {
  Coordinator coordinator(tuned(40));
  const std::vector<MemberId> members{MemberId(1), MemberId(2)};
  double divergence = 0.06;
  for (int round = 0; round < 4; ++round, divergence += 0.01) {
    for (const MemberId member : members)
      coordinator.contributed(
          member,
          {.steps = 40, .compute_seconds = 1, .exchange_seconds = 0.01, .divergence = divergence});
    coordinator.round_over();
    EXPECT_EQ(coordinator.pauses_growth(), round >= 2);
  }
  EXPECT_EQ(coordinator.nudges(), 1u);
  EXPECT_THAT(coordinator.plan(members), ElementsAre(20, 20));
}

/// What a member tells when nothing but its divergence matters.
void tell(Coordinator& coordinator, MemberId member, double divergence,
          std::uint32_t fragment = 0) {
  coordinator.contributed(
      member, {.steps = 40, .compute_seconds = 1, .divergence = divergence, .fragment = fragment});
}

/// Fragments diverge each by itself: that the second is larger than the first is no growth, and
/// that all four grow is one thing.
TEST(Coordinator, FragmentsAreComparedEachWithItself) {
  Coordinator coordinator(tuned(40));
  const auto turn = [&](double more) {
    for (std::uint32_t fragment = 0; fragment < 4; ++fragment) {
      for (const MemberId member : {MemberId(1), MemberId(2)})
        tell(coordinator, member, 0.06 + 0.01 * fragment + more, fragment);
      coordinator.round_over();
    }
  };
  for (int i = 0; i < 10; ++i) turn(0);
  EXPECT_EQ(coordinator.nudges(), 0u);
  EXPECT_FALSE(coordinator.pauses_growth());
  EXPECT_DOUBLE_EQ(coordinator.divergence(), 0.09);
  for (int i = 1; i <= 3; ++i) turn(0.001 * i);
  EXPECT_EQ(coordinator.nudges(), 1u);
  EXPECT_EQ(coordinator.cadence().anchor(), 20u);
  for (int i = 0; i < 4; ++i) turn(0.003);
  EXPECT_EQ(coordinator.nudges(), 1u);
  EXPECT_FALSE(coordinator.pauses_growth());
}

/// With asp a round is one contribution: the next one's member is another, and no growth of this.
TEST(Coordinator, MembersAreComparedWhenAllHaveTold) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  Coordinator coordinator(tuned(40));
  std::vector<std::uint64_t> order{0, 1, 2, 3};
  const auto turn = [&](double more, bool is_mixed = true) {
    for (std::uint64_t i = is_mixed ? 3 : 0; i > 0; --i)
      std::swap(order[i], order[rng.below(i + 1)]);
    for (const std::uint64_t i : order) {
      tell(coordinator, MemberId(i + 1), 0.06 + 0.01 * static_cast<double>(i) + more);
      coordinator.round_over();
    }
  };
  for (int i = 0; i < 50; ++i) turn(0);
  EXPECT_EQ(coordinator.nudges(), 0u);
  EXPECT_FALSE(coordinator.pauses_growth());
  for (int i = 1; i <= 5; ++i) turn(0.001 * i, false);
  EXPECT_EQ(coordinator.nudges(), 1u);
  EXPECT_EQ(coordinator.cadence().anchor(), 20u);

  Coordinator joining(tuned(40));  // one after the other, each further away
  for (std::uint64_t present = 1; present <= 6; ++present)
    for (std::uint64_t i = 0; i < present; ++i) {
      tell(joining, MemberId(i + 1), 0.06 + 0.01 * static_cast<double>(i));
      joining.round_over();
    }
  EXPECT_EQ(joining.nudges(), 0u);
  EXPECT_FALSE(joining.pauses_growth());
}

/// Nobody is waited for without end.
TEST(Coordinator, WhoTellsNothingIsLeftOutOfTheComparison) {
  Coordinator coordinator(tuned(40));
  tell(coordinator, MemberId(2), 0.5);
  double divergence = 0.06;
  for (unsigned i = 0; i < 2 * DivergenceSeries::kPatience; ++i, divergence += 0.001) {
    tell(coordinator, MemberId(1), divergence);
    coordinator.round_over();
  }
  EXPECT_GE(coordinator.nudges(), 1u);
}

/// With asp one may tell a tenth as often as another: that both drift apart is seen all the same,
/// and that the seldom one is further away is no growth.
TEST(Coordinator, WhoTellsSeldomHidesNoGrowth) {
  for (const double growth : {0.0005, 0.0}) {
    SCOPED_TRACE(growth);
    Coordinator coordinator(tuned(40));
    for (int turn = 0; turn < 100; ++turn) {
      const double more = growth * turn;
      tell(coordinator, MemberId(1), 0.06 + more);
      coordinator.round_over();
      if (turn % 10 != 0) continue;
      tell(coordinator, MemberId(2), 0.2 + more);
      coordinator.round_over();
    }
    if (growth > 0) {
      EXPECT_GE(coordinator.nudges(), 3u);
      continue;
    }
    EXPECT_EQ(coordinator.nudges(), 0u);
    EXPECT_FALSE(coordinator.pauses_growth());
  }
}

/// Rounds at the end of an epoch have what is left of it: that parameters diverge more in the next
/// one is no growth. Two members, `part` of 20 steps in the last round of each epoch of six.
TEST(Coordinator, ShortRoundsAreNoGrowth) {
  for (const bool predicts : {false, true})
    for (const double part : {0.25, 0.8}) {
      SCOPED_TRACE(testing::Message() << "predicts " << predicts << ", part " << part);
      Coordinator::Options options = tuned(20);
      options.predicts = predicts;
      options.divergence = predicts ? 0.05 : 0.01;
      Coordinator coordinator(options);
      const std::vector<MemberId> members{MemberId(1), MemberId(2)};
      double divergence = -1;  // noise: falls after each short round, and rises twice
      for (int round = 0; round < 60; ++round) {
        const auto plan = coordinator.plan(members);
        std::vector<double> steps;
        for (const std::uint64_t planned : plan)
          steps.push_back(static_cast<double>(planned) * (round % 6 == 5 ? part : 1));
        for (std::size_t i = 0; i < members.size(); ++i)
          coordinator.contributed(members[i], {.steps = steps[i],
                                               .compute_seconds = 0.01 * steps[i],
                                               .part = steps[i] / static_cast<double>(plan[i]),
                                               .exchange_seconds = 0.015,
                                               .divergence = divergence});
        coordinator.round_over();
        divergence = 0.0024 * steps[0] + 1e-5 * (round % 3);  // no growth; 0.048 of 0.05
        EXPECT_EQ(coordinator.nudges(), 0u) << round;
      }
      EXPECT_EQ(coordinator.cadence().anchor(), 20u);
    }
}

/// The rate is that of the steps that were made, also where some of them are not looked at.
TEST(Coordinator, GrowthIsSeenBeyondShortRounds) {
  Coordinator::Options options = tuned(40);
  options.predicts = true;
  Coordinator coordinator(options);
  const MemberId member(1);
  constexpr double kRate = 0.002;
  double divergence = 0.01, told = -1;
  for (const double steps : {40.0, 40.0, 10.0, 40.0, 40.0}) {
    coordinator.contributed(
        member, {.steps = steps, .compute_seconds = steps, .part = steps / 40, .divergence = told});
    coordinator.round_over();
    divergence *= std::exp(kRate * steps);
    told = divergence;
    EXPECT_EQ(coordinator.nudges(), 0u);
  }
  // The last that was told is of 130 steps, 40 have been made since.
  const double left = std::log(0.05 / 0.01) / kRate - 130 - 40;
  EXPECT_EQ(coordinator.growth_limit(), static_cast<std::uint64_t>(left));
}

/// Two averages are enough: the first is one to compare with.
TEST(Coordinator, TheSecondAverageGivesTheRateOfGrowth) {
  Coordinator::Options options = tuned(40);
  options.predicts = true;
  Coordinator coordinator(options);
  double told = -1;
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(coordinator.growth_limit());
    coordinator.contributed(MemberId(1), {.steps = 40, .compute_seconds = 1, .divergence = told});
    coordinator.round_over();
    told = told < 0 ? 0.02 : 0.03;
  }
  // ln(0.03 / 0.02) in 40 steps; to 0.05, less the 40 made since.
  const double left = std::log(0.05 / 0.03) / (std::log(1.5) / 40) - 40;
  EXPECT_EQ(coordinator.growth_limit(), static_cast<std::uint64_t>(left));
}

/// Who evaluates in a round comes with the others all the same.
TEST(Coordinator, WhoIsKeptFromItsStepsMakesFewer) {
  Coordinator coordinator(tuned(10));
  const std::vector<MemberId> members{MemberId(1), MemberId(2), MemberId(3)};
  coordinator.contributed(members[0], {.steps = 30, .compute_seconds = 0.3});
  coordinator.contributed(members[1], {.steps = 10, .compute_seconds = 0.3});
  const auto plan = [&](std::vector<double> busy) { return coordinator.plan(members, busy); };
  EXPECT_THAT(plan({}), ElementsAre(30, 10, 4));
  EXPECT_THAT(plan({0.1, 0, 0}), ElementsAre(20, 10, 4));
  EXPECT_THAT(plan({0, 0.1, 5}), ElementsAre(30, 7, 4));  // nothing is known of the third
  EXPECT_THAT(plan({10, 0, 0}), ElementsAre(1, 10, 4));
  EXPECT_THAT(plan({}), ElementsAre(30, 10, 4));  // of that round only
  Coordinator::Options given;
  given.mode = Coordinator::Mode::kSpeed;
  given.ratios = {3, 1};
  Coordinator fixed(given);
  const std::vector<double> busy{10, 0};
  EXPECT_THAT(fixed.plan(std::span(members).first(2), busy), ElementsAre(30, 10));
}

/// Simulated time: `paces` seconds a step, an exchange that takes `cost`; the part of the whole
/// that members compute (speed-weighted: samples trained to samples that could have been trained).
double efficiency(Coordinator& coordinator, const std::vector<double>& paces, double cost,
                  int rounds, double noise = 0, std::uint64_t seed = 1) {
  std::vector<MemberId> members;
  for (std::size_t i = 0; i < paces.size(); ++i) members.emplace_back(i + 1);
  CounterRng rng(seed);
  double trained = 0, possible = 0, time = 0;
  std::vector<double> exchange(paces.size(), 0);
  for (int round = 0; round < rounds; ++round) {
    const auto steps = coordinator.plan(members);
    std::vector<double> work;
    for (std::size_t i = 0; i < paces.size(); ++i)
      work.push_back(static_cast<double>(steps[i]) * paces[i] *
                     (1 + noise * (rng.uniform() - 0.5)));
    const double last = *std::max_element(work.begin(), work.end());
    for (std::size_t i = 0; i < paces.size(); ++i) {
      coordinator.contributed(members[i], {.steps = static_cast<double>(steps[i]),
                                           .compute_seconds = work[i],
                                           .exchange_seconds = exchange[i]});
      exchange[i] = last - work[i] + cost;
    }
    coordinator.round_over();
    if (round < 5) continue;  // speeds become known
    for (const std::uint64_t count : steps) trained += static_cast<double>(count);
    time += last + cost;
  }
  for (const double pace : paces) possible += time / pace;
  return trained / possible;
}

TEST(Coordinator, UnequalMembersStayBusy) {
  const std::vector<std::vector<double>> clusters{
      {1, 3}, {1, 1, 1, 1}, {1, 2, 4, 8}, {1, 1.1, 1.2, 10}, {0.3, 0.5, 1}, {1, 3, 3, 3, 3, 3, 3}};
  for (const auto& paces : clusters)
    for (const double cost : {0.01, 0.5, 5.0, 20.0}) {
      Coordinator tuning(tuned(10));
      const double busy = efficiency(tuning, paces, cost, 200);
      EXPECT_GE(busy, 0.85) << "cost " << cost << ", " << paces.size() << " members";
      Coordinator::Options options = tuned(10);
      options.mode = Coordinator::Mode::kOff;
      Coordinator off(options);
      EXPECT_LE(efficiency(off, paces, cost, 200), busy + 1e-9);
    }
}

TEST(Coordinator, AThirdAsFastWithoutItIsTwoThirdsOfTheTime) {
  Coordinator::Options options = tuned(10);
  options.mode = Coordinator::Mode::kOff;
  Coordinator off(options);
  EXPECT_NEAR(efficiency(off, {1, 3}, 0, 50), 0.5, 1e-9);
  Coordinator on(tuned(10));
  EXPECT_NEAR(efficiency(on, {1, 3}, 0, 50), 1.0, 1e-9);
}

TEST(Coordinator, NoiseOfAFifthCostsLittle) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Coordinator coordinator(tuned(10));
    EXPECT_GE(efficiency(coordinator, {1, 3, 2}, 0.5, 300, 0.2, seed), 0.85) << "seed " << seed;
    EXPECT_LE(coordinator.cadence().anchor(), 200u);
  }
}

TEST(ReturnedShares, WhatALostMemberHadIsGivenToOthersAfterTheRound) {
  ReturnedShares pool;
  EXPECT_TRUE(pool.is_empty());
  EXPECT_EQ(pool.take(100), DataPart());
  pool.lost({.epoch = 2, .begin = 300, .end = 400});
  EXPECT_TRUE(pool.is_empty());  // the round still runs
  pool.commit();
  EXPECT_EQ(pool.samples(), 100u);
  EXPECT_EQ(pool.take(60), (DataPart{.epoch = 2, .begin = 300, .end = 360}));
  EXPECT_EQ(pool.take(60), (DataPart{.epoch = 2, .begin = 360, .end = 400}));
  EXPECT_TRUE(pool.is_empty());
  pool.give_up();  // that round came to nothing: both wait again
  EXPECT_EQ(pool.take(1000), (DataPart{.epoch = 2, .begin = 300, .end = 360}));
  pool.lost({.epoch = 2, .begin = 300, .end = 360});
  pool.commit();
  EXPECT_EQ(pool.samples(), 100u);
  EXPECT_EQ(pool.returned(), 160u);
}

/// Members die at random and rounds are given up at random: at the end every position of the epoch
/// was trained exactly once.
TEST(ReturnedShares, EverySampleIsTrainedExactlyOnce) {
  const std::uint64_t seed = 77;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  for (int trial = 0; trial < 200; ++trial) {
    const std::uint64_t samples = 1 + rng.below(500);
    std::vector<int> trained(samples, 0);
    ReturnedShares pool;
    std::uint64_t offset = 0;
    for (int round = 0; offset < samples || !pool.is_empty(); ++round) {
      ASSERT_LT(round, 100000);
      std::uint64_t end = offset;
      std::vector<DataPart> shares;
      for (std::uint64_t member = 0; member < 3; ++member) {
        const std::uint64_t wanted = 1 + rng.below(40);
        DataPart part = pool.take(wanted);
        if (part.samples() == 0) {
          part = {.begin = end, .end = std::min(samples, end + wanted)};
          end = part.end;
        }
        shares.push_back(part);
      }
      if (rng.below(5) == 0) {
        pool.give_up();
        continue;
      }
      for (const DataPart& part : shares) {
        if (rng.below(4) == 0) {
          pool.lost(part);
          continue;
        }
        for (std::uint64_t i = part.begin; i < part.end; ++i) ++trained[i];
      }
      pool.commit();
      offset = end;
    }
    ASSERT_TRUE(std::ranges::all_of(trained, [](int n) { return n == 1; }));
  }
}

TEST(ReturnedShares, SurviveARestart) {
  ReturnedShares pool, other;
  EXPECT_EQ(pool.to_text(), "");
  pool.give_back({.epoch = 2, .begin = 300, .end = 400});
  pool.give_back({.epoch = 3, .begin = 0, .end = 7});
  EXPECT_EQ(pool.to_text(), "2:300-400,3:0-7");
  other.restore(pool.to_text());
  EXPECT_EQ(other.to_text(), pool.to_text());
  EXPECT_EQ(other.samples(), 107u);
  for (const char* const bad : {"", "x", "1", "1:2", "1:2-", "1:5-5", "1:5-3", "1:2-3;4:5-6"}) {
    other.restore(bad);
    EXPECT_TRUE(other.is_empty()) << bad;
  }
}

TEST(Overshoot, GrowsWithStableRoundsUpToItsBoundAndAGivenOneStays) {
  Overshoot small(45), middle(300), large(100000);
  EXPECT_EQ(small.steps(), 2u);
  EXPECT_EQ(middle.steps(), 3u);
  EXPECT_EQ(large.steps(), 5u);
  Overshoot given = Overshoot::fixed(7);
  for (int i = 0; i < 50; ++i) small.stable(), middle.stable(), large.stable(), given.stable();
  EXPECT_EQ(small.steps(), 3u);
  EXPECT_EQ(middle.steps(), 6u);
  EXPECT_EQ(large.steps(), 10u);
  EXPECT_EQ(given.steps(), 7u);
}

/// Of a share of 4 steps, 2 of them behind the contribution, that tells of 2: half the pace
/// otherwise, and half as many steps for it. From then on each tells of as many as a share has.
TEST(ReportedSteps, EachWorkersStepsAreCountedApart) {
  ReportedSteps first, second;
  EXPECT_EQ(first.contributed(7, 2, true), 5);
  EXPECT_EQ(second.contributed(4, 1, true), 3);
  EXPECT_EQ(first.contributed(1, 0, true), 1 + 2);
  EXPECT_EQ(second.contributed(1, 0, true), 1 + 1);
}

TEST(ReportedSteps, StepsAfterAContributionBelongToTheNext) {
  ReportedSteps steps;
  EXPECT_EQ(steps.contributed(4, 2, false), 2);
  EXPECT_EQ(steps.contributed(10, 2, true), 10);
  EXPECT_EQ(steps.contributed(7, 2, false), 5);  // the round before came to nothing
  EXPECT_EQ(steps.contributed(1, 2, true), 3);   // nothing is behind a single step
  EXPECT_EQ(steps.contributed(0, 2, true), 0);   // an empty share
  EXPECT_EQ(steps.contributed(6, 0, true), 6);
  EXPECT_DOUBLE_EQ(steps.contributed(2.5, 1, false), 2.5 * 2 / 3);  // three pieces of the same size
  EXPECT_DOUBLE_EQ(steps.contributed(4, 0, true),
                   4 + 2.5 / 3);  // the last round has nothing behind it

  Coordinator coordinator(tuned(10));
  ReportedSteps probe;
  coordinator.contributed(MemberId(1),
                          {.steps = probe.contributed(4, 2, false), .compute_seconds = 2 * 0.5});
  EXPECT_DOUBLE_EQ(coordinator.cadence().seconds_per_step(MemberId(1)), 0.5);
}

// In a world in which the divergence grows by lambda a step, the steps that are planned never take
// it beyond the bound, and use what there is.
TEST(GrowthPredictor, KeepsAGrowingDivergenceUnderItsBound) {
  constexpr double kBound = 0.05;
  for (const double lambda : {0.001, 0.01, 0.05}) {
    SCOPED_TRACE(lambda);
    GrowthPredictor predictor(kBound);
    double divergence = 0.01;
    EXPECT_FALSE(predictor.observe({&divergence, 1}, 10).has_value());  // no rate yet
    std::uint64_t steps = 10;
    divergence *= std::exp(lambda * static_cast<double>(steps));
    auto limit = predictor.observe({&divergence, 1}, steps);
    ASSERT_TRUE(limit.has_value());
    EXPECT_NEAR(predictor.rate(), lambda, 1e-12);
    EXPECT_EQ(*limit, static_cast<std::uint64_t>(std::log(kBound / divergence) / lambda + 1e-9));
    steps = *limit;
    const double used = divergence * std::exp(lambda * static_cast<double>(steps));
    EXPECT_LE(used, kBound * (1 + 1e-9));
    EXPECT_GT(used * std::exp(lambda), kBound * (1 - 1e-9));  // one more would be too many
  }
}

TEST(GrowthPredictor, WhatIsBeyondTheBoundOrComesBackOrIsNotKnown) {
  GrowthPredictor predictor(0.05);
  const auto see = [&](double divergence, std::uint64_t steps = 10) {
    return predictor.observe({&divergence, 1}, steps);
  };
  see(0.04);
  EXPECT_EQ(see(0.08), 1u);             // there already
  EXPECT_FALSE(see(0.07).has_value());  // on its way back
  EXPECT_TRUE(see(0.075).has_value());
  EXPECT_EQ(predictor.observe({}, 10), 1u);  // nothing was measured: it stays
  EXPECT_EQ(see(std::numeric_limits<double>::quiet_NaN()), 1u);
  EXPECT_FALSE(see(0.01).has_value());  // from what was no number no rate comes
  GrowthPredictor none(0);
  const double far = 10;
  EXPECT_FALSE(none.observe({&far, 1}, 1).has_value());
}

// Two members whose parameters drift apart faster with each round: predicted, the rounds get
// shorter before the bound is passed; when the drift ends, the cost of the exchange rules again.
TEST(Coordinator, PredictedGrowthBoundsTheSteps) {
  Coordinator::Options options;
  options.mode = Coordinator::Mode::kTuned;
  options.predicts = true;
  options.divergence = 0.05;
  options.cadence.initial = 40;
  Coordinator coordinator(options);
  const std::vector<MemberId> members{MemberId(1), MemberId(2)};
  const auto round = [&](double divergence, double exchange) {
    for (const MemberId member : members) {
      const auto steps = static_cast<double>(coordinator.cadence().anchor());
      coordinator.contributed(member, {.steps = steps,
                                       .compute_seconds = 0.01 * steps,
                                       .exchange_seconds = exchange,
                                       .divergence = divergence});
    }
    coordinator.round_over();
    return coordinator.plan(members).front();
  };
  constexpr double kRate = 0.01;  // a step
  double divergence = 0.005;
  for (int i = 0; i < 20; ++i) {  // what an average found is told with the next contribution
    const std::uint64_t steps = coordinator.cadence().anchor();
    round(i == 0 ? -1 : divergence, 0.001);
    divergence *= std::exp(kRate * static_cast<double>(steps));
    if (steps > 1) {
      EXPECT_LE(divergence, 0.05 * (1 + 1e-9)) << i;
    }
  }
  EXPECT_LT(coordinator.cadence().anchor(), 40u);
  EXPECT_GT(coordinator.nudges(), 0u);
  const std::uint64_t low = coordinator.cadence().anchor();
  for (int i = 0; i < 10; ++i) round(0.001, 1);  // dear exchanges, no drift
  EXPECT_GT(coordinator.cadence().anchor(), low);
}

}  // namespace
}  // namespace centroid::server
