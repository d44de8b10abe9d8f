#include "server/state/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/store_fixture.h"

namespace centroid::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

/// A job in the middle of its training: version 3 is committed, and the store holds version 1,
/// which is that before round 2 (round 1 was skipped).
JobState job_behind_its_workers() {
  JobState job;
  job.run_id = "r";
  job.agreed.emplace().model = "mlp";
  ChunkPlan plan = small_plan();
  FragmentPlan fragments = FragmentPlan::make(plan, 1).value();
  job.shard = ModelShard::make(std::move(plan), std::move(fragments), optimizer_of("sgd"),
                               {.apply_on_worker = true})
                  .value();
  job.store().initialize();
  job.round = Round(2);
  job.offset = 32;
  job.held = job.position();
  for (int round = 0; round < 2; ++round) job.store().commit_elsewhere();
  job.round = Round(4);
  job.epoch = 1;
  job.offset = 64;
  job.steps_before = 20;
  job.attempts = 2;
  job.evaluate_next = true;
  job.trained_rounds = 2;
  job.counted.add("a", Round(3));
  job.counted.add("b", Round(1));
  job.evaluation = {.version = Version(3), .accuracy = 0.5, .loss = 1};
  job.history.emplace_front();
  job.announced = Version(3);
  job.last_written.emplace();
  job.measured = std::make_shared<ParametersView>();
  return job;
}

void expect_nothing_of_the_later_version(const JobState& job) {
  EXPECT_THAT(job.history, IsEmpty());
  EXPECT_FALSE(job.announced);
  EXPECT_FALSE(job.last_written);
  EXPECT_EQ(job.measured, nullptr);
  EXPECT_EQ(job.attempts, 0u);
  EXPECT_FALSE(job.evaluate_next);
  EXPECT_EQ(job.evaluation.version, Version());
  EXPECT_EQ(job.evaluation.accuracy, -1);
}

TEST(JobState, GoesBackToTheBeginningAsAWhole) {
  JobState job = job_behind_its_workers();
  job.replace(JobState());
  expect_nothing_of_the_later_version(job);
  EXPECT_EQ(job.version(), Version());
  EXPECT_EQ(job.round, Round(1));
  EXPECT_EQ(job.epoch + job.offset + job.steps_before, 0u);
  EXPECT_THAT(job.counted.all(), IsEmpty());
  EXPECT_FALSE(job.agreed);
  EXPECT_EQ(job.run_id, "r") << "it stays the same run";
}

TEST(JobState, GoesBackToWhatTheStoreHolds) {
  JobState job = job_behind_its_workers();
  const ModelShard* const shard = job.shard.get();
  job.replace(std::move(job).back_to_stored());
  expect_nothing_of_the_later_version(job);
  EXPECT_EQ(job.shard.get(), shard);
  EXPECT_EQ(job.version(), Version(1));
  EXPECT_TRUE(job.store().is_current());
  EXPECT_EQ(job.round, Round(2));
  EXPECT_EQ(job.offset, 32u);
  EXPECT_EQ(job.epoch + job.steps_before, 0u);
  EXPECT_THAT(job.counted.all(), ElementsAre(Pair("b", Round(1))))
      << "round 3 does not count any more";
  EXPECT_TRUE(job.agreed) << "its workers are still here";
  EXPECT_EQ(job.trained_rounds, 2u) << "nobody is waited for anew";
}

TEST(JobState, BeginsAnewInTheSameStoreThatHoldsNothing) {
  JobState job = job_behind_its_workers();
  job.store().begin_replacing();  // the last worker goes while it sends the newest values
  job.replace(std::move(job).back_to_stored());
  EXPECT_EQ(job.version(), Version());
  EXPECT_EQ(job.round, Round(1));
  EXPECT_EQ(job.offset, 0u);
  EXPECT_EQ(job.store().optimizer_step(), 0u);
}

TEST(JobState, KeepsATestResultThatIsNotOfAVersionToCome) {
  JobState job = job_behind_its_workers();
  job.evaluation.version = Version(1);
  job.replace(std::move(job).back_to_stored());
  EXPECT_EQ(job.evaluation.version, Version(1));
  EXPECT_EQ(job.evaluation.accuracy, 0.5);
}

TEST(JobState, KeepsTheCurvesOfRoundsThatAreNotGivenUp) {
  JobState job = job_behind_its_workers();
  for (std::uint64_t round = 1; round < 4; ++round) {
    CurvePointView point;
    point.first = round;
    job.curves.add(point);
  }
  job.replace(std::move(job).back_to_stored());
  CurvePointView again;
  again.first = 2;
  job.curves.add(again);
  ASSERT_EQ(job.curves.points().size(), 2u);
  EXPECT_EQ(job.curves.points()[0].last, 1u);
  JobState loaded;
  loaded.round = Round(7);
  CurvePointView sixth;
  sixth.first = 6;
  loaded.curves.add(sixth);
  job.replace(std::move(loaded));
  EXPECT_EQ(job.curves.points()[0].last, 6u) << "a checkpoint of another leader has more";
}

TEST(JobState, WaitsForWorkersAnewWhereTheyMayHaveGone) {
  JobState job = job_behind_its_workers();
  job.gather_until = TimePoint();
  job.gather_again();
  EXPECT_EQ(job.trained_rounds, 0u);
  EXPECT_TRUE(job.was_restored);
  EXPECT_FALSE(job.gather_until);
  job.gather_until = TimePoint();
  job.replace(JobState());
  EXPECT_TRUE(job.was_restored && job.gather_until) << "another first model changes nothing of it";
}

TEST(CountedRounds, LateOnesDoNotComeBeforeALaterOne) {
  CountedRounds counted;
  counted.add("a", Round(5));
  counted.add("a", Round(4));
  EXPECT_EQ(counted.of("a"), Round(5));
  EXPECT_FALSE(counted.of("b").has_value());
  counted.forget_before(Round(6));
  EXPECT_FALSE(counted.of("a").has_value());
}

/// A worker may come again and again by other names.
TEST(CountedRounds, NamesWithoutEndTakeMemoryWithAnEnd) {
  CountedRounds counted;
  constexpr std::uint64_t kAtOnce = CountedRounds::kMost / 4;
  for (std::uint64_t i = 0; i < 10 * kAtOnce; ++i)
    counted.add(std::to_string(i), Round(1 + i / kAtOnce));
  EXPECT_LE(counted.all().size(), CountedRounds::kMost);
  for (std::uint64_t i = 9 * kAtOnce; i < 10 * kAtOnce; ++i)
    ASSERT_EQ(counted.of(std::to_string(i)), Round(10)) << "the newest round's stay";
}

TEST(CountedRounds, NewestComeFirstWithinTheBytes) {
  CountedRounds counted;
  counted.add("old", Round(1));
  counted.add("new", Round(3));
  counted.add("\x01\x02", Round(2));  // \u0001\u0002
  using Pairs = std::vector<std::pair<std::string, Round>>;
  EXPECT_EQ(counted.newest(Round(2), 100), (Pairs{{"new", Round(3)}, {"\x01\x02", Round(2)}}));
  EXPECT_EQ(counted.newest(Round(), 15).size(), 2u);
  EXPECT_EQ(counted.newest(Round(), 14).size(), 1u);
}

}  // namespace
}  // namespace centroid::server
