#include "server/aggregate/round_machine.h"

#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::server::round_machine_test {
namespace {

const MemberId kA(11), kB(12), kC(13);

Contribution of(double weight) {
  Contribution contribution;
  contribution.weight = weight;
  return contribution;
}

RoundMachine opened(NonFinitePolicy nonfinite = NonFinitePolicy::kHalt) {
  RoundMachine machine({.kind = PolicyKind::kBsp, .nonfinite = nonfinite});
  machine.open(Round(7), 0, {kA, kB, kC});
  return machine;
}

RoundAction act(const Result<RoundDecision>& result) { return result.value().action; }

TEST(RoundMachine, ClosesWhenEverybodyContributedInRankOrder) {
  RoundMachine machine = opened();
  EXPECT_EQ(act(machine.contribute(kC, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kA, of(2))), RoundAction::kWait);
  EXPECT_EQ(machine.missing(), std::vector<MemberId>{kB});
  const RoundDecision merged = machine.contribute(kB, of(3)).value();
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_EQ(merged.contributors, (std::vector<MemberId>{kA, kB, kC}));
  EXPECT_EQ(merged.total_weight, 6);
}

TEST(RoundMachine, TakesAContributionOnce) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  EXPECT_EQ(machine.contribute(kA, of(1)).error().code(), ErrorCode::kAborted);
  EXPECT_EQ(machine.contribute(MemberId(99), of(1)).error().code(), ErrorCode::kAborted);
}

TEST(RoundMachine, AnEmptyShareTakesPartWithoutWeight) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, of(0)).ok());
  ASSERT_TRUE(machine.contribute(kB, of(4)).ok());
  const RoundDecision merged = machine.contribute(kC, of(0)).value();
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_EQ(merged.contributors, std::vector<MemberId>{kB});
}

TEST(RoundMachine, NobodyHadSamplesIsASkip) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, {}).ok());
  ASSERT_TRUE(machine.contribute(kB, {}).ok());
  EXPECT_EQ(act(machine.contribute(kC, {})), RoundAction::kSkip);
}

TEST(RoundMachine, ADeathBeforeAnyAdditionOnlyShrinksTheRound) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  ASSERT_TRUE(machine.contribute(kB, of(1)).ok());
  const RoundDecision merged = machine.gone(kC, Progress::kNothing);
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_EQ(merged.total_weight, 2);
}

TEST(RoundMachine, ADeathInTheMiddleOfAContributionRepeatsTheAttempt) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  EXPECT_EQ(machine.gone(kC, Progress::kPart).action, RoundAction::kRetry);
  EXPECT_FALSE(machine.is_open());
  EXPECT_FALSE(machine.contribute(kB, of(1)).ok());
}

TEST(RoundMachine, ACompleteContributionOfADeadMemberCounts) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, of(5)).ok());
  EXPECT_EQ(machine.gone(kA, Progress::kPart).action, RoundAction::kWait);
  ASSERT_TRUE(machine.contribute(kB, of(1)).ok());
  EXPECT_EQ(machine.contribute(kC, of(1)).value().total_weight, 7);
}

TEST(RoundMachine, EverybodyGoneIsDeserted) {
  RoundMachine machine = opened();
  EXPECT_EQ(machine.gone(kA, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_EQ(machine.gone(kB, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_EQ(machine.gone(kC, Progress::kPart).action, RoundAction::kDeserted);
}

TEST(RoundMachine, NonFiniteHaltsAtOnceOrSkipsForAllOrGoesIn) {
  const Contribution bad{.weight = 1, .nonfinite = true, .nonfinite_tensor = "layers.0.weight"};
  RoundMachine halt = opened();
  const RoundDecision halted = halt.contribute(kB, bad).value();
  EXPECT_EQ(halted.action, RoundAction::kHalt);
  EXPECT_EQ(halted.culprit, kB);
  EXPECT_NE(halted.text.find("layers.0.weight"), std::string::npos);
  EXPECT_NE(halted.text.find("round 7"), std::string::npos);

  RoundMachine skip = opened(NonFinitePolicy::kSkip);
  EXPECT_EQ(act(skip.contribute(kB, bad)), RoundAction::kWait);
  EXPECT_EQ(act(skip.contribute(kA, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(skip.contribute(kC, of(1))), RoundAction::kSkip);

  RoundMachine through = opened(NonFinitePolicy::kPropagate);
  ASSERT_TRUE(through.contribute(kA, of(1)).ok());
  ASSERT_TRUE(through.contribute(kC, of(1)).ok());
  EXPECT_EQ(act(through.contribute(kB, bad)), RoundAction::kMerge);
}

Contribution in_bad_sum(double norm) {
  return {.weight = 1, .nonfinite = true, .nonfinite_tensor = "w", .norm = norm};
}

TEST(RoundMachine, ASumThatIsNotFiniteIsDecidedByAllAndNamesTheLargest) {
  for (const auto policy : {NonFinitePolicy::kHalt, NonFinitePolicy::kSkip}) {
    RoundMachine machine = opened(policy);
    EXPECT_EQ(act(machine.contribute(kA, in_bad_sum(1))), RoundAction::kWait);
    EXPECT_EQ(act(machine.contribute(kC, in_bad_sum(3e38))), RoundAction::kWait);
    const RoundDecision decision = machine.contribute(kB, in_bad_sum(2)).value();
    EXPECT_EQ(decision.action,
              policy == NonFinitePolicy::kHalt ? RoundAction::kHalt : RoundAction::kSkip);
    EXPECT_EQ(decision.culprit, kC);
    EXPECT_NE(decision.text.find("tensor w is not finite in round 7, though every contribution "
                                 "is; the largest has norm 3e+38"),
              std::string::npos)
        << decision.text;
  }
}

TEST(RoundMachine, WhoseOwnIsNotFiniteIsNamedBeforeASum) {
  RoundMachine machine = opened();
  EXPECT_EQ(act(machine.contribute(kA, in_bad_sum(5))), RoundAction::kWait);
  const Contribution own{.weight = 1, .nonfinite = true, .nonfinite_tensor = "w"};
  const RoundDecision halted = machine.contribute(kB, own).value();
  EXPECT_EQ(halted.action, RoundAction::kHalt);
  EXPECT_EQ(halted.culprit, kB);
}

TEST(RoundMachine, WithoutEveryNormNobodyIsBlamedForASum) {
  RoundMachine machine = opened();
  ASSERT_TRUE(machine.contribute(kA, in_bad_sum(5)).ok());
  ASSERT_TRUE(machine.contribute(kB, of(1)).ok());
  const RoundDecision halted = machine.contribute(kC, in_bad_sum(1)).value();
  EXPECT_EQ(halted.action, RoundAction::kHalt);
  EXPECT_EQ(halted.culprit, MemberId());
}

/// Every sequence of events of three members, to its end: exactly one decision, and it counts whole
/// contributions once.
RoundMachine opened_joint() {
  RoundPolicy policy;
  policy.is_joint = true;
  RoundMachine machine(policy);
  machine.open(Round(7), 0, {kA, kB, kC});
  return machine;
}

TEST(RoundMachine, AJointRoundRepeatsWhenAMemberGoesBeforeItsEnd) {
  RoundMachine machine = opened_joint();
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  const RoundDecision decision = machine.gone(kB, Progress::kNothing);
  EXPECT_EQ(decision.action, RoundAction::kRetry);
  EXPECT_NE(decision.text.find("member 12"), std::string::npos) << decision.text;
  EXPECT_FALSE(machine.is_open());
}

TEST(RoundMachine, AJointRoundCountsWhoWentAfterItsEnd) {
  RoundMachine machine = opened_joint();
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  EXPECT_EQ(machine.gone(kA, Progress::kNothing).action, RoundAction::kWait);
  ASSERT_TRUE(machine.contribute(kB, of(2)).ok());
  const RoundDecision merged = machine.contribute(kC, of(3)).value();
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_EQ(merged.total_weight, 6);
}

TEST(RoundMachine, AJointRoundThatFailsForOneIsRepeatedOnce) {
  RoundMachine machine = opened_joint();
  EXPECT_EQ(machine.failed(MemberId(99), "x").action, RoundAction::kWait);
  ASSERT_TRUE(machine.contribute(kA, of(1)).ok());
  EXPECT_EQ(machine.failed(kA, "x").action, RoundAction::kWait) << "it had the sum";
  const RoundDecision decision = machine.failed(kB, "rank 2 is silent");
  EXPECT_EQ(decision.action, RoundAction::kRetry);
  EXPECT_EQ(decision.text, "rank 2 is silent");
  EXPECT_EQ(machine.failed(kC, "x").action, RoundAction::kWait) << "the attempt is over";
  RoundMachine star = opened();
  EXPECT_EQ(star.failed(kB, "x").action, RoundAction::kWait) << "no member depends on another";
}

TEST(RoundMachine, AJointRoundWithoutLivingMembersIsDeserted) {
  RoundMachine machine = opened_joint();
  (void)machine.gone(kA, Progress::kNothing);
  machine.open(Round(7), 1, {kB});
  EXPECT_EQ(machine.gone(kB, Progress::kNothing).action, RoundAction::kDeserted);
}

TEST(RoundMachine, AContributionOfADeadMemberCountsThoughAnotherTimesOut) {
  for (const Progress progress : {Progress::kNothing, Progress::kPart}) {
    RoundMachine machine = opened();
    EXPECT_EQ(act(machine.contribute(kA, of(2))), RoundAction::kWait);
    EXPECT_EQ(machine.gone(kA, Progress::kPart).action, RoundAction::kWait);
    EXPECT_EQ(act(machine.contribute(kB, of(1))), RoundAction::kWait);
    const RoundDecision decision = machine.timed_out({kC}, progress);
    if (progress == Progress::kPart) {  // it cannot be taken back
      EXPECT_EQ(decision.action, RoundAction::kRetry);
      continue;
    }
    EXPECT_EQ(decision.action, RoundAction::kMerge);
    EXPECT_EQ(decision.total_weight, 3);
    EXPECT_THAT(decision.contributors, ::testing::ElementsAre(kA, kB));
  }
  RoundMachine machine = opened();
  (void)machine.contribute(kA, of(2));
  (void)machine.gone(kA, Progress::kPart);
  EXPECT_EQ(machine.timed_out({kB}, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_FALSE(machine.is_missing(kB)) << "it is not waited for any more";
  EXPECT_FALSE(machine.contribute(kB, of(1)).ok());
  EXPECT_EQ(act(machine.contribute(kC, of(1))), RoundAction::kMerge);
}

TEST(RoundMachine, EveryShortSequenceEndsInExactlyOneDecision) {
  struct Event {
    int member;
    int what;  // 0 contributes, 1 goes with nothing added, 2 goes with a part added
  };
  const MemberId members[] = {kA, kB, kC};
  std::size_t sequences = 0;
  const std::function<void(std::vector<Event>)> extend = [&](std::vector<Event> events) {
    RoundMachine machine({});
    machine.open(Round(1), 0, {kA, kB, kC});
    std::set<int> done, gone;
    RoundDecision last;
    for (const Event& event : events) {
      ASSERT_TRUE(machine.is_open());
      if (event.what == 0) {
        last = machine.contribute(members[event.member], of(static_cast<double>(1 << event.member)))
                   .value();
        done.insert(event.member);
      } else {
        last = machine.gone(members[event.member],
                            event.what == 1 ? Progress::kNothing : Progress::kPart);
        gone.insert(event.member);
      }
    }
    double weight = 0;
    for (const int member : done) weight += 1 << member;
    if (last.action == RoundAction::kMerge) {
      EXPECT_EQ(last.total_weight, weight);
    }
    EXPECT_EQ(machine.is_open(), last.action == RoundAction::kWait);
    if (!machine.is_open()) {
      ++sequences;
      const bool is_complete = done.size() + gone.size() == 3;
      EXPECT_TRUE(is_complete || last.action == RoundAction::kRetry);
      EXPECT_TRUE(!done.empty() || last.action == RoundAction::kDeserted ||
                  last.action == RoundAction::kRetry);
      for (const MemberId member : members) {
        EXPECT_FALSE(machine.contribute(member, of(1)).ok());
        EXPECT_EQ(machine.gone(member, Progress::kPart).action, RoundAction::kWait);
      }
      return;
    }
    for (int member = 0; member < 3; ++member) {
      if (done.count(member) > 0 || gone.count(member) > 0) continue;
      for (int what = 0; what < 3; ++what) {
        auto longer = events;
        longer.push_back({member, what});
        extend(longer);
      }
    }
  };
  extend({});
  EXPECT_GT(sequences, 80u);
}

}  // namespace
}  // namespace centroid::server::round_machine_test
