#include "server/state/curves.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

CurvePointView round_of(std::uint64_t number, std::uint64_t samples = 32) {
  CurvePointView round;
  round.first = number;
  round.unix_seconds = 1e9 + static_cast<double>(number);
  round.round_seconds = 0.25;
  round.samples = samples;
  round.samples_per_second = static_cast<double>(samples) / round.round_seconds;
  if (samples > 0) round.loss = 1 / static_cast<double>(number);
  if (samples > 0) round.accuracy = 0.5;
  round.learning_rate = 0.1 / static_cast<double>(number);
  round.workers = 2;
  return round;
}

Curves curves_of(std::uint64_t rounds) {
  Curves curves;
  for (std::uint64_t round = 1; round <= rounds; ++round) curves.add(round_of(round));
  return curves;
}

std::uint64_t seed_of_run() {
  const char* const wanted = std::getenv("TEST_SEED");
  return wanted == nullptr ? random_seed() : std::strtoull(wanted, nullptr, 10);
}

/// What must be true of all points together, however they were merged.
struct Sums {
  std::uint64_t rounds = 0, samples = 0;
  double loss = 0, seconds = 0, worked = 0, workers = 0;

  void add(const CurvePointView& point) {
    const auto count = static_cast<double>(point.rounds);
    rounds += point.rounds;
    samples += point.samples;
    if (!std::isnan(point.loss)) loss += point.loss * static_cast<double>(point.samples);
    seconds += count * point.round_seconds;
    worked += point.samples_per_second * count * point.round_seconds;
    workers += count * point.workers;
  }
};

TEST(Curves, CoverAllRoundsInOrderWithTheSameSumsAndMeans) {
  const std::uint64_t seed = seed_of_run();
  std::printf("TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  for (std::uint64_t run = 0; run < 20; ++run) {
    SCOPED_TRACE(run);
    CounterRng rng(seed, run);
    Curves curves, again;
    Sums wanted;
    std::uint64_t round = 0;
    const std::uint64_t count = 1 + rng.next() % 20000;
    for (std::uint64_t i = 0; i < count; ++i) {
      round += 1 + rng.next() % 2;  // skipped rounds are not in it
      CurvePointView one = round_of(round, rng.next() % 8 * 16);
      one.round_seconds = 1e-3 * static_cast<double>(1 + rng.next() % 100);
      one.samples_per_second = static_cast<double>(one.samples) / one.round_seconds;
      one.workers = static_cast<double>(1 + rng.next() % 9);
      curves.add(one);
      again.add(one);
      one.rounds = 1;
      wanted.add(one);
    }
    ASSERT_LE(curves.points().size(), Curves::kMost);
    if (count > Curves::kMost) {
      EXPECT_GE(curves.points().size(), Curves::kMost / 2);
    }
    Sums sums;
    std::uint64_t last = 0;
    double seconds = 0;
    for (const CurvePointView& point : curves.points()) {
      ASSERT_GT(point.first, last);
      ASSERT_GE(point.last, point.first);
      ASSERT_GE(point.last - point.first + 1, point.rounds);
      ASSERT_GT(point.seconds, seconds);
      EXPECT_NEAR(point.seconds - seconds, point.round_seconds * static_cast<double>(point.rounds),
                  1e-6);
      last = point.last;
      seconds = point.seconds;
      sums.add(point);
    }
    EXPECT_EQ(last, round);
    EXPECT_EQ(sums.rounds, count);
    EXPECT_EQ(sums.samples, wanted.samples);
    EXPECT_NEAR(sums.loss, wanted.loss, 1e-6 * (1 + wanted.loss));
    EXPECT_NEAR(sums.worked, wanted.worked, 1e-6 * (1 + wanted.worked));
    EXPECT_NEAR(sums.workers, wanted.workers, 1e-6 * wanted.workers);
    EXPECT_NEAR(seconds, wanted.seconds, 1e-6 * wanted.seconds);
    EXPECT_EQ(again.to_text(), curves.to_text()) << "the same rounds give the same points";
  }
}

TEST(Curves, EveryRoundIsAPointUntilThereAreTooMany) {
  Curves curves = curves_of(Curves::kMost);
  ASSERT_THAT(curves.points(), SizeIs(Curves::kMost));
  EXPECT_EQ(curves.revision(), 0u);
  curves.add(round_of(Curves::kMost + 1));
  ASSERT_THAT(curves.points(), SizeIs(Curves::kMost / 2 + 1));
  EXPECT_EQ(curves.revision(), 1u);
  const CurvePointView& first = curves.points().front();
  EXPECT_EQ(std::tuple(first.first, first.last, first.rounds, first.samples),
            std::tuple(1u, 2u, 2u, 64u));
  EXPECT_DOUBLE_EQ(first.loss, 0.75);
  EXPECT_DOUBLE_EQ(first.samples_per_second, 128);
  EXPECT_DOUBLE_EQ(first.learning_rate, 0.05) << "of its last step";
  EXPECT_TRUE(std::isnan(first.gradient_norm)) << "of no round it is known";
}

TEST(Curves, APointHasTheNewestTestResultAndWhatIsKnownOfItsRounds) {
  Curves curves = curves_of(2);
  curves.evaluated(0.5, 0.75);
  for (std::uint64_t round = 3; round <= Curves::kMost; ++round) {
    CurvePointView one = round_of(round, round % 2 * 32);
    if (round == 4) one.gradient_norm = 3;
    curves.add(one);
  }
  curves.add(round_of(Curves::kMost + 1));
  const auto& points = curves.points();
  EXPECT_EQ(points[0].test_loss, 0.5);
  EXPECT_EQ(points[0].test_accuracy, 0.75);
  EXPECT_TRUE(std::isnan(points[1].test_loss));
  EXPECT_EQ(points[1].gradient_norm, 3);
  EXPECT_DOUBLE_EQ(points[1].loss, 1.0 / 3) << "round 4 had no samples";
}

TEST(Curves, AfterARoundTheyBeginWithThePointThatHasIt) {
  const Curves curves = curves_of(Curves::kMost + 1);  // two rounds a point
  EXPECT_THAT(curves.after(0), SizeIs(Curves::kMost / 2 + 1));
  EXPECT_EQ(curves.after(1).front().first, 1u);
  EXPECT_EQ(curves.after(2).front().first, 3u);
  EXPECT_THAT(curves.after(Curves::kMost + 1), IsEmpty());
  EXPECT_THAT(Curves().after(0), IsEmpty());
}

TEST(Curves, AResumedJobGoesOnWithThoseOfItsCheckpoint) {
  const Curves before = curves_of(5000);
  const std::string text = before.to_text();
  EXPECT_LT(text.size(), 40'000u) << "it is in the manifest of each checkpoint";
  Curves resumed = Curves::of_text(text);
  EXPECT_EQ(resumed.to_text(), text);
  EXPECT_LE(resumed.points().size(), Curves::kSaved);
  EXPECT_EQ(resumed.points().front().first, 1u);
  EXPECT_NEAR(resumed.points().back().seconds, 1250, 1e-6);
  resumed.go_on(Curves());
  for (std::uint64_t round = 5001; round <= 90'000; ++round) resumed.add(round_of(round));
  EXPECT_LE(resumed.points().size(), Curves::kMost);
  EXPECT_EQ(resumed.points().front().first, 1u);
  EXPECT_EQ(resumed.points().back().last, 90'000u);
  EXPECT_NEAR(resumed.points().back().seconds, 22'500, 1e-3);
}

TEST(Curves, TextOfSomethingElseGivesNone) {
  const std::string text = curves_of(3).to_text();
  for (const std::string& wrong :
       {std::string(), std::string("0 "), std::string("-1 "), std::string("x"), text + "7",
        text + text.substr(2), text.substr(0, text.size() - 1), "1 2" + text.substr(3)}) {
    EXPECT_THAT(Curves::of_text(wrong).points(), IsEmpty()) << wrong;
  }
  EXPECT_THAT(Curves::of_text(text).points(), SizeIs(3));
}

/// A lost shard server takes a live leader back to a checkpoint. The journal's rounds follow
/// without their results, and count.
TEST(Curves, ALeaderThatReplaysItsRoundsKeepsTheirPoints) {
  const Curves here = curves_of(900);
  Curves loaded = Curves::of_text(curves_of(600).to_text());
  loaded.go_on(here);
  loaded.add(round_of(901));
  ASSERT_THAT(loaded.points(), SizeIs(901));
  EXPECT_EQ(loaded.points()[700].first, 701u);
}

TEST(Curves, AJobThatGoesBackForgetsWhatItGivesUpWhenItTrainsThatAgain) {
  Curves here = curves_of(900);
  Curves loaded = Curves::of_text(curves_of(600).to_text());
  loaded.go_on(here);
  EXPECT_GT(loaded.revision(), here.revision());
  const std::uint64_t revision = loaded.revision();
  loaded.add(round_of(601));
  EXPECT_THAT(loaded.points(), SizeIs(601)) << "those of this process are finer";
  EXPECT_GT(loaded.revision(), revision);
  Curves of_another_leader = Curves::of_text(curves_of(600).to_text());
  of_another_leader.go_on(curves_of(500));
  EXPECT_EQ(of_another_leader.points().back().last, 600u) << "those that reach further";
  Curves anew;
  anew.go_on(curves_of(5000));
  anew.add(round_of(1));
  EXPECT_THAT(anew.points(), SizeIs(1));
  anew.add(round_of(2));
  EXPECT_THAT(anew.points(), SizeIs(2)) << "a point for each round again";
}

}  // namespace
}  // namespace centroid::server
