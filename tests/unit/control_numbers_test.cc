#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "server/aggregate/aggregator.h"
#include "server/aggregate/round_machine.h"
#include "server/aggregate/round_timeout.h"
#include "server/coordinate/coordinator.h"
#include "server/coordinate/epoch_tallies.h"
#include "server/coordinate/partition.h"
#include "server/coordinate/returned_shares.h"
#include "server/coordinate/tally.h"
#include "server/membership/roster.h"

/// Numbers that coordinators of the field are checked with, here where the same is decided.
namespace centroid::server::control_numbers_test {
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
  Aggregator aggregator(plan, std::move(hooks));
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
  const auto nothing =
      ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {0}}}, 64).value();
  EXPECT_TRUE(nothing.chunks().empty());  // of an empty one nothing is sent
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
  EXPECT_EQ(mean({{1}, {-inf}}, {1, 1})[0], -inf);
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

/// One round in simulated time: each member makes its steps at its pace and contributes, at once.
/// Milliseconds until the average, and the coordinator hears how long each took.
double round_time(Coordinator& coordinator, const std::vector<MemberId>& members,
                  const std::vector<double>& paces) {
  RoundMachine rounds = machine("bsp");
  rounds.open(Round(1), 0, members);
  const auto steps = coordinator.plan(members);
  std::multimap<double, std::size_t> comes;
  for (std::size_t i = 0; i < members.size(); ++i)
    comes.emplace(static_cast<double>(steps[i]) * paces[i], i);
  double merged = -1;
  for (const auto& [time, i] : comes) {
    coordinator.contributed(
        members[i], {.steps = static_cast<double>(steps[i]), .compute_seconds = time / 1000});
    if (contribute(rounds, members[i]) == RoundAction::kMerge) merged = time;
  }
  coordinator.round_over();
  return merged;
}

/// Paces of 5 and 10 ms, 10 steps of the slower one: an average every 100 ms of both, so not when
/// one has worked for 50 of them only, nor after nine of ten steps. Without the coordinator ten
/// steps of each. A member that turns slow is waited for once, then the times are equal again.
TEST(Control, CadenceClosesWhenTheTimeOfTheSlowestIsOver) {
  const std::vector<MemberId> members{kA, kB};
  Coordinator::Options options;
  options.cadence.initial = 10;
  Coordinator same(options);
  EXPECT_THAT(same.plan(members), ElementsAre(10, 10));
  EXPECT_DOUBLE_EQ(round_time(same, members, {5, 10}), 100);
  EXPECT_DOUBLE_EQ(round_time(same, members, {5, 10}), 100);
  EXPECT_DOUBLE_EQ(round_time(same, members, {5, 4}), 50);

  options.mode = Coordinator::Mode::kSpeed;
  Coordinator cadence(options);
  EXPECT_DOUBLE_EQ(round_time(cadence, members, {5, 10}), 40);  // a probe of 4 steps
  EXPECT_THAT(cadence.plan(members), ElementsAre(20, 10));
  EXPECT_DOUBLE_EQ(round_time(cadence, members, {5, 10}), 100);
  EXPECT_DOUBLE_EQ(round_time(cadence, members, {5, 12}), 120);  // who comes last closes it
  for (int i = 0; i < 60; ++i) round_time(cadence, members, {5, 20});
  EXPECT_THAT(cadence.plan(members), ElementsAre(40, 10));
  EXPECT_DOUBLE_EQ(round_time(cadence, members, {5, 20}), 200);
}

/// One has gone: the others' averages go on, and what it had contributed counts.
TEST(Control, AveragesGoOnWithoutWhoHasGone) {
  RoundMachine rounds = machine("bsp");
  rounds.open(Round(1), 0, {kA, kB});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  const auto decision = rounds.gone(kB, Progress::kNothing);
  EXPECT_EQ(decision.action, RoundAction::kMerge);
  EXPECT_THAT(decision.contributors, ElementsAre(kA));
  rounds.open(Round(2), 0, {kA});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kMerge);
}

/// Who is more than the limit ahead waits, also when it is far ahead; a step of the slowest or its
/// loss sets it free; 0 is lockstep.
TEST(Control, ALeadIsThrottledAndReleased) {
  RoundMachine rounds = machine("ssp:3");
  std::uint64_t round = 0;
  const auto step = [&](MemberId member) {
    rounds.open(Round(++round), 0, {kA, kB});
    EXPECT_EQ(contribute(rounds, member), RoundAction::kMerge);
    rounds.forgive(kA);
    rounds.forgive(kB);
  };
  for (std::uint64_t lead = 1; lead <= 5; ++lead) {
    step(kA);
    EXPECT_EQ(rounds.steps_ahead(kA), lead);
    EXPECT_EQ(rounds.may_begin(kA), lead <= 3) << lead;
  }
  EXPECT_FALSE(rounds.may_begin(kA));  // asking again changes nothing
  EXPECT_TRUE(rounds.may_begin(kB));
  step(kB);
  EXPECT_FALSE(rounds.may_begin(kA));
  step(kB);
  EXPECT_EQ(rounds.steps_ahead(kA), 3u);
  EXPECT_TRUE(rounds.may_begin(kA));
  step(kA);
  EXPECT_FALSE(rounds.may_begin(kA));
  rounds.open(Round(++round), 0, {kA, kB});
  rounds.gone(kB, Progress::kNothing);
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

/// Who has said nothing in time is left out of the next attempt; where nobody would be left, or
/// somebody else is meant, all are waited for.
TEST(Control, ARoundThatTakesTooLongIsRepeatedWithoutTheSilent) {
  RoundMachine rounds = machine("bsp");
  EXPECT_EQ(rounds.timed_out({kB}, Progress::kNothing).action, RoundAction::kWait);  // not open
  rounds.open(Round(1), 0, {kA, kB, kC});
  EXPECT_EQ(rounds.timed_out({}, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_EQ(rounds.timed_out({kA, kB, kC}, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  EXPECT_EQ(rounds.timed_out({kA}, Progress::kNothing).action,
            RoundAction::kWait);  // it has contributed
  EXPECT_EQ(contribute(rounds, kC), RoundAction::kWait);
  EXPECT_TRUE(rounds.is_open());
  EXPECT_EQ(rounds.timed_out({kB}, Progress::kNothing).action, RoundAction::kRetry);
  EXPECT_FALSE(rounds.is_open());
  EXPECT_FALSE(rounds.contribute(kB, {}).ok());
  rounds.open(Round(1), 1, {kA, kC});
  EXPECT_EQ(contribute(rounds, kA), RoundAction::kWait);
  EXPECT_EQ(contribute(rounds, kC), RoundAction::kMerge);
}

/// A hundred rounds of three members of which two take 0.3 s and the third so long; the limit is a
/// second. How often the third was left out, and was in, and the seconds of all rounds.
struct Waited {
  int left_out = 0, in = 0;
  double seconds = 0;
};

Waited wait_for(double third) {
  const auto after = [](double s) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
  };
  const Duration limit = after(1), others = after(0.3), own = after(third);
  const TimePoint start{std::chrono::hours(1)};
  TimePoint now = start, done_at{};
  std::optional<Duration> took;
  bool is_away = false;
  Waited out;
  RoundMachine rounds = machine("bsp");
  for (std::uint64_t round = 1; round <= 100; ++round) {
    if (is_away && now >= done_at) {
      is_away = false;
      took = own;
    }
    const bool takes_part = !is_away;
    rounds.open(Round(round), 0, takes_part ? std::vector{kA, kB, kC} : std::vector{kA, kB});
    const TimePoint opened = now;
    now += others;
    contribute(rounds, kA);
    auto action = contribute(rounds, kB);
    const Duration allowed = allowed_silence(limit, took);
    if (takes_part && own < allowed) {
      now = std::max(now, opened + own);
      action = contribute(rounds, kC);
      ++out.in;
    } else if (takes_part) {
      now = opened + allowed;
      EXPECT_EQ(rounds.timed_out({kC}, Progress::kNothing).action, RoundAction::kRetry);
      ++out.left_out;
      is_away = true;
      done_at = opened + own;
      rounds.open(Round(round), 1, {kA, kB});  // they have their gradients
      contribute(rounds, kA);
      action = contribute(rounds, kB);
    }
    EXPECT_EQ(action, RoundAction::kMerge);
  }
  out.seconds = std::chrono::duration<double>(now - start).count();
  return out;
}

/// Who is a little too slow is left out once and taken along from then on; who is far too slow
/// costs one limit whenever it comes, and not four.
TEST(Control, WhoIsALittleTooSlowIsLeftOutOnce) {
  EXPECT_EQ(wait_for(0.9).left_out, 0);
  for (const double third : {1.1, 2.0, 3.9}) {
    SCOPED_TRACE(third);
    const Waited waited = wait_for(third);
    EXPECT_EQ(waited.left_out, 1);
    EXPECT_GE(waited.in, 100 - 1 - std::ceil(third / 0.3));
  }
  const Waited far = wait_for(10);
  EXPECT_EQ(far.in, 0);
  EXPECT_GT(far.left_out, 1);
  EXPECT_LT(far.seconds, 100 * 0.3 + far.left_out);

  using std::chrono::seconds;
  EXPECT_EQ(allowed_silence(seconds(4), std::nullopt), seconds(4));
  EXPECT_EQ(allowed_silence(seconds(4), seconds(8)), seconds(10));
  EXPECT_EQ(allowed_silence(seconds(4), seconds(15)), seconds(16));  // at most
  EXPECT_EQ(allowed_silence(seconds(4), seconds(17)), seconds(4));
  EXPECT_EQ(allowed_silence(seconds(12), seconds(8)), seconds(12));  // the limit was raised
}

/// The same with numbers: 999 of the attempt that was aborted are in no sum of the next one.
TEST(Control, WhatAnAbortedAttemptHadSummedIsGone) {
  const auto plan =
      ChunkPlan::make({{.name = "w", .dtype = DType::kF32, .shape = {1}}}, 64).value();
  std::vector<float> sum(1);
  double total = 0;
  Aggregator::Hooks hooks;
  hooks.target = [&](const Chunk&) { return std::span(sum); };
  hooks.is_held = [](ChunkId) { return false; };
  hooks.on_complete = [&](ChunkId, double weight) { total = weight; };
  hooks.on_consumed = [](std::uint32_t, std::size_t) {};
  Aggregator aggregator(plan, std::move(hooks));
  const std::shared_ptr<const Codec> codec = make_codec("f32").value();
  const auto offer = [&](std::uint32_t rank, float value) {
    Buffer payload(sizeof value);
    std::memcpy(payload.data(), &value, sizeof value);
    return aggregator.offer(rank, ChunkId(0), 1, std::move(payload), sizeof value);
  };
  aggregator.begin({codec, codec});
  EXPECT_TRUE(offer(0, 999).ok());  // and the other never comes
  aggregator.begin({codec});        // the next attempt, of who is left
  EXPECT_TRUE(offer(0, 2).ok());
  EXPECT_EQ(total, 1);
  EXPECT_EQ(sum[0], 2.0f);
  EXPECT_FALSE(offer(0, 999).ok());  // once only
  EXPECT_EQ(sum[0], 2.0f);
}

/// Losses, accuracies, speeds and shares of workers with 60 and 40 batches, and of one with several
/// contributions in an epoch.
TEST(Metrics, WeighBySamples) {
  constexpr std::uint64_t kBatch = 100;  // samples
  const auto of = [](std::uint64_t batches, double loss, double accuracy) {
    const double samples = static_cast<double>(batches * kBatch);
    return Tally{.loss_sum = loss * samples,
                 .samples = batches * kBatch,
                 .correct = static_cast<std::uint64_t>(std::lround(accuracy * samples)),
                 .steps = batches};
  };
  Tally epoch;
  EXPECT_EQ(epoch.loss(), 0);
  EXPECT_EQ(epoch.accuracy(), 0);
  epoch.add(of(60, 0.5, 0.4));
  epoch.add(of(40, 0.7, 0.7));
  EXPECT_NEAR(epoch.loss(), 0.58, 1e-12);
  EXPECT_NEAR(epoch.accuracy(), 0.52, 1e-12);
  EXPECT_EQ(epoch.steps, 100u);
  Tally other;
  other.add(of(60, 1.0, 0));
  other.add(of(40, 2.0, 0));
  EXPECT_NEAR(other.loss(), 1.4, 1e-12);
  Tally several;  // three contributions of one worker
  several.add(of(30, 1.0, 0));
  several.add(of(50, 1.2, 0));
  several.add(of(20, 1.2, 0));
  EXPECT_NEAR(several.loss(), 1.14, 1e-12);

  // The same as numbers that a program names, one a batch.
  const auto named = [](std::uint64_t batches, double value) {
    Tally tally;
    for (std::uint64_t i = 0; i < batches; ++i) EXPECT_TRUE(tally.scalars.record("s", value).ok());
    return tally;
  };
  const auto mean_of = [](const std::vector<Tally>& all) {
    Tally sum;
    for (const Tally& one : all) sum.add(one);
    return sum.scalars.all().at("s").mean();
  };
  EXPECT_NEAR(mean_of({named(60, 1.0), named(40, 2.0)}), 1.4, 1e-12);
  EXPECT_NEAR(mean_of({named(60, 0.4), named(40, 0.7)}), 0.52, 1e-12);
  EXPECT_NEAR(mean_of({named(30, 1.0), named(50, 1.2), named(20, 1.2)}), 1.14, 1e-12);

  // What an epoch says of the two: 60 and 40 batches of 32 samples in a second each.
  EpochTallies epochs;
  const auto told = [](const char* worker, std::uint64_t begin, std::uint64_t batches) {
    return ReportedShare{
        .part = {.epoch = 0, .begin = begin, .end = begin + 32 * batches},
        .worker = worker,
        .devices = 1,
        .compute_seconds = 1,
        .tally = {.loss_sum = 0.5 * static_cast<double>(32 * batches), .samples = 32 * batches}};
  };
  epochs.add(told("a", 0, 30), 3200, 1), epochs.add(told("b", 30 * 32, 40), 3200, 2);
  ReportedShare rest = told("a", 70 * 32, 30);
  rest.compute_seconds = 0;
  epochs.add(rest, 3200, 3);
  EXPECT_EQ(epochs.end(0, 9), nullptr);
  const EpochTally* const over = epochs.end(1, 9);
  ASSERT_NE(over, nullptr);
  const EpochTally::Member &a = over->members.at("a"), &b = over->members.at("b");
  EXPECT_NEAR(a.samples_per_second() / 1000, 1.92, 1e-12);  // samples a millisecond
  EXPECT_NEAR(b.samples_per_second() / 1000, 1.28, 1e-12);
  EXPECT_DOUBLE_EQ(over->share_of(a), 0.6);
  EXPECT_DOUBLE_EQ(over->share_of(b), 0.4);
  EXPECT_EQ(a.contributions, 2u);
  EXPECT_EQ(over->trained, 3200u);
  EXPECT_EQ(over->start_unix_seconds, 1);
  EXPECT_DOUBLE_EQ(over->all.loss(), 0.5);

  // And what the next shares are made of.
  Coordinator::Options options;
  options.mode = Coordinator::Mode::kSpeed;
  Coordinator coordinator(options);
  coordinator.contributed(kA, {.steps = 60, .compute_seconds = 1});  // of 32 samples
  coordinator.contributed(kB, {.steps = 40, .compute_seconds = 1});
  const std::vector<MemberId> members{kA, kB};
  const std::vector<std::uint64_t> batches{32, 32};
  const auto speeds = coordinator.speeds(members, batches);
  EXPECT_NEAR(speeds[0] / 1000, 1.92, 1e-12);  // samples a millisecond
  EXPECT_THAT(partition(100, speeds), ElementsAre(60, 40));
}

/// A share counts in the epoch to which its samples belong, by parts where that is two; epochs end
/// one after the other, and come again after a job has gone back.
TEST(Metrics, AnEpochHasWhatItsOwnSharesTold) {
  EpochTallies epochs;
  ReportedShare both{.part = {.epoch = 4, .begin = 8, .end = 12},  // of 10
                     .worker = "a",
                     .devices = 2,
                     .compute_seconds = 4,
                     .tally = {.loss_sum = 8, .samples = 5, .correct = 3, .steps = 2}};
  ASSERT_TRUE(both.tally.scalars.record("s", 7).ok());
  epochs.add(both, 10, 1);
  epochs.add({.part = {.epoch = 4, .begin = 15, .end = 20},  // wholly of the next
              .worker = "b",
              .tally = {.loss_sum = 5, .samples = 5}},
             10, 2);
  epochs.add({.part = {.epoch = 4, .begin = 10, .end = 10},  // what is told behind the last share
              .worker = "b",
              .tally = {.loss_sum = 1, .samples = 1}},
             10, 3);
  EXPECT_EQ(epochs.end(4, 9), nullptr);
  const EpochTally* over = epochs.end(6, 9);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(over->epoch, 4u);
  EXPECT_EQ(over->trained, 2u);
  const EpochTally::Member& a = over->members.at("a");
  EXPECT_EQ(a.tally.samples, 3u);  // half of 5, and the rest in the other
  EXPECT_EQ(a.tally.loss_sum, 4);
  EXPECT_EQ(a.compute_seconds, 2);
  EXPECT_EQ(a.tally.scalars.all().at("s").count, 1u);
  EXPECT_EQ(over->members.at("b").tally.samples, 1u);
  over = epochs.end(6, 9);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(over->epoch, 5u);
  EXPECT_EQ(over->trained, 7u);
  EXPECT_EQ(over->members.at("a").tally.samples, 2u);
  EXPECT_EQ(over->members.at("a").contributions, 0u);
  EXPECT_TRUE(over->members.at("a").tally.scalars.is_empty());
  EXPECT_EQ(epochs.end(6, 9), nullptr);

  epochs.add(both, 10, 5);
  epochs.drop_open();
  EXPECT_EQ(epochs.end(9, 9), nullptr);
  epochs.add(both, 10, 5);
  over = epochs.end(5, 9);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(epochs.ended().size(), 1u) << "4 and 5 of before are not what was trained";

  EpochTallies many;
  for (const std::size_t workers : {1, 200, 2000}) {
    for (std::uint64_t epoch = 0; epoch < 1100 / workers + (workers > 1000 ? 20 : 90); ++epoch) {
      for (std::size_t i = 0; i < workers; ++i)
        many.add({.part = {.epoch = epoch, .begin = i, .end = i + 1},
                  .worker = std::to_string(i),
                  .tally = {.samples = 1}},
                 workers, 1);
      (void)many.end(epoch + 1, 1);
    }
    EXPECT_EQ(many.ended().size(), workers == 1     ? EpochTallies::kMost
                                   : workers == 200 ? EpochTallies::kNames / workers
                                                    : EpochTallies::kLeast);
  }
}

/// The learning rate 0.05 of two workers is 0.10 (in a server that trains:
/// CoordinatorTest.TheRateGrowsWithTheWorkersOfARound); with a slope of 0.01 it goes by steps.
/// There is no step at 0, where nothing would be learned: the first is at 0.01
/// (docs/how-to/optimizers.md). That it goes by nothing else:
/// LocalStepsTest.RatesAreOneSequenceInEveryMode.
TEST(LearningRate, FollowsSteps) {
  EXPECT_DOUBLE_EQ(0.05 * rate_factor_of(2, 1), 0.10);
  EXPECT_DOUBLE_EQ(rate_factor_of(5, 0.25), 2);
  for (const std::uint64_t workers : {0, 1}) EXPECT_EQ(rate_factor_of(workers, 1), 1);
  const auto schedule = LearningRateSchedule::parse("constant:warmup=100").value();
  for (int step = 1; step <= 3; ++step)
    EXPECT_DOUBLE_EQ(schedule.factor(static_cast<std::uint64_t>(step)), 0.01 * step);
}

TEST(Control, NumbersOfCadenceAndGuard) {
  Cadence::Options options;
  options.initial = 47;
  options.max_lead = 3;
  Cadence cadence(options);
  const std::vector<MemberId> members{kA, kB};
  cadence.worked(kA, 1, 0.5);
  cadence.worked(kB, 1, 1.0);
  EXPECT_THAT(cadence.plan(members), ElementsAre(50, 47));
  const std::vector<double> weights{20, 10};
  EXPECT_THAT(partition(15, weights), ElementsAre(10, 5));
  Coordinator sync(Coordinator::Options{});
  for (int round = 1; round <= 5; ++round) {
    sync.contributed(kA, {.steps = 1, .compute_seconds = 1, .divergence = 0.1 * round});
    sync.round_over();
    EXPECT_FALSE(sync.pauses_growth());
  }
  EXPECT_EQ(sync.nudges(), 0u);
  EXPECT_EQ(Overshoot::fixed(7).steps(), 7u);
}

/// At most two members; both fail when their leases are over; who drains is not active.
TEST(Control, MembershipWithinItsBounds) {
  const TimePoint start{std::chrono::hours(1)};
  const auto after = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  Roster roster({.lease = std::chrono::milliseconds(100), .max_members = 2});
  const MemberId a = roster.join("a", "x", start, 0).value().member;
  const MemberId b = roster.join("b", "x", start, 0).value().member;
  EXPECT_EQ(roster.join("c", "x", start, 0).error().code(), ErrorCode::kResourceExhausted);
  roster.form(true);
  EXPECT_THAT(roster.ranked(), ElementsAre(a, b));
  roster.drain(b);
  roster.form(true);
  EXPECT_THAT(roster.ranked(), ElementsAre(a));
  for (int ms = 0; ms <= 100; ms += 10) EXPECT_TRUE(roster.tick(after(ms)).empty());
  EXPECT_THAT(roster.tick(after(101)), ElementsAre(a, b));
  EXPECT_EQ(roster.present(), 0u);
  EXPECT_TRUE(roster.join("a", "x", after(102), 0).ok());  // the same name comes back

  Roster none({.lease = std::chrono::milliseconds(0), .max_members = 2});
  const MemberId first = none.join("a", "x", start, 0).value().member;
  const MemberId second = none.join("b", "x", start, 0).value().member;
  EXPECT_THAT(none.tick(after(1)), ElementsAre(first, second));
  EXPECT_EQ(none.present(), 0u);
}

}  // namespace
}  // namespace centroid::server::control_numbers_test
