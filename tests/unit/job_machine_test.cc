#include "server/coordinate/job_machine.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

/// The steps of a job under all facts, and a ledger under random changes of them.
namespace centroid::server {
namespace {

using Fact = bool JobFacts::*;
constexpr std::array<Fact, 13> kFacts{
    &JobFacts::lacks_state,   &JobFacts::has_new_settings, &JobFacts::needs_restore,
    &JobFacts::needs_stop,    &JobFacts::is_goal_reached,  &JobFacts::lost_server,
    &JobFacts::awaits_server, &JobFacts::may_not_commit,   &JobFacts::needs_freeze,
    &JobFacts::replays,       &JobFacts::is_paused,        &JobFacts::has_values,
    &JobFacts::lacks_journal,
};
constexpr std::uint32_t kAll = 1u << kFacts.size();

JobFacts facts_of(std::uint32_t bits) {
  JobFacts facts;
  for (std::size_t i = 0; i < kFacts.size(); ++i) facts.*kFacts[i] = ((bits >> i) & 1) != 0;
  return facts;
}

/// What a step has done when it succeeds.
void apply(JobStep step, JobFacts& facts) {
  if (step == JobStep::kFetchState) facts.lacks_state = false;
  if (step == JobStep::kTakeSettings) facts.has_new_settings = false;
  if (step == JobStep::kRestore) facts.needs_restore = false;
  if (step == JobStep::kAwaitLead) facts.may_not_commit = false;
  if (step == JobStep::kFreeze) facts.needs_freeze = false;
  if (step == JobStep::kReplay) facts.replays = false;
  if (step == JobStep::kPause) facts.is_paused = false;
  if (step == JobStep::kResolveServers) facts.awaits_server = facts.lost_server = false;
  if (step == JobStep::kInitialize) facts.has_values = true;
  if (step == JobStep::kBeginJournal) facts.lacks_journal = false;
}

/// Nothing but the wish to train.
void expect_may_train(const JobFacts& f, const std::string& where) {
  EXPECT_FALSE(f.lacks_state || f.has_new_settings || f.needs_restore || f.needs_stop) << where;
  EXPECT_FALSE(f.may_not_commit || f.needs_freeze || f.replays || f.is_paused) << where;
  EXPECT_FALSE(f.lacks_journal) << where;
  EXPECT_TRUE(f.has_values) << where;
}

TEST(JobMachine, EveryStepThatSucceedsLeadsToARoundOrToTheEnd) {
  for (std::uint32_t bits = 0; bits < kAll; ++bits) {
    JobMachine machine;
    JobFacts facts = facts_of(bits);
    std::vector<JobStep> steps;
    const std::string where = "facts " + std::to_string(bits);
    for (;;) {
      const JobStep step = machine.next(facts);
      steps.push_back(step);
      if (step == JobStep::kTrain || step == JobStep::kEnd) break;
      apply(step, facts);
      machine.over(step);
      ASSERT_LT(steps.size(), 20u) << where << ": it goes round and round";
    }
    if (steps.back() == JobStep::kTrain) {
      expect_may_train(facts, where);
      EXPECT_FALSE(facts.is_goal_reached) << where;
    } else {
      EXPECT_TRUE(facts.needs_stop || facts.is_goal_reached) << where;
    }
  }
}

TEST(JobMachine, AStopIsTakenBeforeAnythingThatWaits) {
  for (std::uint32_t bits = 0; bits < kAll; ++bits) {
    JobFacts facts = facts_of(bits);
    facts.needs_stop = true;
    facts.lacks_state = facts.has_new_settings = facts.needs_restore = false;
    EXPECT_EQ(JobMachine().next(facts), JobStep::kEnd) << "facts " << bits;
  }
}

TEST(JobMachine, AtTheGoalALostServerIsAwaitedFirst) {
  JobFacts facts;
  facts.is_goal_reached = facts.has_values = true;
  facts.lost_server = facts.awaits_server = true;
  JobMachine machine;
  EXPECT_EQ(machine.next(facts), JobStep::kResolveServers);
  machine.over(JobStep::kResolveServers, false);
  EXPECT_EQ(machine.next(facts), JobStep::kResolveServers);
  facts.lost_server = facts.awaits_server = false;
  EXPECT_EQ(machine.next(facts), JobStep::kEnd);
}

/// Facts change at random between and in the steps, and answers are random. The ledger knows of
/// itself what was answered since the last step that may have changed it.
void run_ledger(std::uint64_t seed) {
  CounterRng rng(seed);
  JobMachine machine;
  JobFacts facts = facts_of(static_cast<std::uint32_t>(rng.below(kAll)));
  bool settled = false, gathered = false;
  for (int i = 0; i < 400; ++i) {
    const std::string where = "seed " + std::to_string(seed) + ", step " + std::to_string(i);
    const JobStep step = machine.next(facts);
    if (step == JobStep::kTrain) {
      expect_may_train(facts, where);
      EXPECT_TRUE(settled) << where << ": a round begins, and nobody has looked at the servers";
      EXPECT_TRUE(gathered) << where << ": a round begins, and nobody has looked at the workers";
    }
    if (step == JobStep::kGather && facts.has_values) {
      EXPECT_TRUE(settled) << where;
    }
    if (step == JobStep::kInitialize) {
      EXPECT_TRUE(gathered) << where;
      EXPECT_FALSE(facts.has_values) << where;
    }
    const bool answer = rng.below(4) != 0;
    const bool asks = step == JobStep::kResolveServers || step == JobStep::kGather;
    if (!asks || !answer) settled = gathered = false;
    if (step == JobStep::kResolveServers) settled = answer;
    if (step == JobStep::kGather) gathered = answer;
    if (rng.below(3) != 0) apply(step, facts);
    machine.over(step, answer);
    if (rng.below(3) == 0) {
      const Fact fact = kFacts[rng.below(kFacts.size())];
      facts.*fact = !(facts.*fact);
    }
  }
}

TEST(JobMachine, LedgerOfRandomSequences) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    run_ledger(seed);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace centroid::server
