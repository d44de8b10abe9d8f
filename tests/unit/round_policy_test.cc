#include "server/aggregate/round_policy.h"

#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/aggregate/round_machine.h"
#include "tests/support/round_values.h"

namespace centroid::server::round_policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MemberId kA(11), kB(12), kC(13), kD(14);

RoundAction act(const Result<RoundDecision>& result) { return result.value().action; }

TEST(RoundPolicy, TextsSayWhatTheyMean) {
  EXPECT_FALSE(policy("bsp").is_elastic());
  EXPECT_EQ(policy("backup:2").count, 2u);
  EXPECT_EQ(policy("quorum:3").grace, 0.5);
  EXPECT_EQ(policy("quorum:3,grace=0").grace, 0);
  EXPECT_EQ(policy("quorum:3", "carry:max=7").max_late, 7u);
  const RoundPolicy damp = policy("backup:1", "damp:power=1.5,max=2");
  EXPECT_EQ(damp.late, LateRule::kDamp);
  EXPECT_EQ(damp.power, 1.5);
  EXPECT_EQ(damp.max_late, 2u);
  const RoundPolicy asp = policy("asp:max=5,power=2");
  EXPECT_EQ(asp.late, LateRule::kDamp);
  EXPECT_EQ(asp.max_late, 5u);
  EXPECT_EQ(asp.power, 2);
  EXPECT_EQ(policy("asp").max_late, 32u);
  EXPECT_EQ(policy("ssp:0").count, 0u);
  EXPECT_EQ(policy("ssp:3").late, LateRule::kCarry);
}

TEST(RoundPolicy, WhatIsWrongIsNamed) {
  const auto message = [](const std::string& text, const std::string& late) {
    RoundPolicy out;
    const Status parsed = parse_policy(text, late, out);
    EXPECT_FALSE(parsed.ok()) << text << " " << late;
    return parsed.ok() ? std::string() : parsed.error().message();
  };
  EXPECT_THAT(message("asap", "drop"),
              HasSubstr("expected bsp, backup:B, quorum:K,grace=0.5, ssp:S or asp"));
  EXPECT_THAT(message("backup", "drop"), HasSubstr("a number after : is missing"));
  EXPECT_THAT(message("backup:0", "drop"), HasSubstr("integer from 1 to 4096"));
  EXPECT_THAT(message("backup:1.5", "drop"), HasSubstr("integer"));
  EXPECT_THAT(message("backup:1,grace=1", "drop"), HasSubstr("\"grace=1\" is unknown"));
  EXPECT_THAT(message("quorum:2,grace=-1", "drop"), HasSubstr("number from 0 to 100"));
  EXPECT_THAT(message("quorum:2,grace=1,grace=1", "drop"), HasSubstr("appears twice"));
  EXPECT_THAT(message("quorum:grace=1", "drop"), HasSubstr("missing"));
  EXPECT_THAT(message("backup:1", "keep"), HasSubstr("drop, carry:max=4 or damp"));
  EXPECT_THAT(message("backup:1", "carry:max=0"), HasSubstr("integer from 1"));
  EXPECT_THAT(message("bsp", "carry"), HasSubstr("nothing is late"));
  EXPECT_THAT(message("asp:8", "drop"), HasSubstr("\"8\" is unknown"));
  EXPECT_THAT(message("ssp", "drop"), HasSubstr("a number after : is missing"));
  EXPECT_THAT(message("ssp:-1", "drop"), HasSubstr("integer from 0"));
  EXPECT_THAT(message("ssp:1", "carry"), HasSubstr("itself decides about"));
}

TEST(RoundPolicy, BackupClosesWithoutTheSlowestAndCountsTheDeadAmongThem) {
  RoundMachine machine(policy("backup:1"));
  machine.open(Round(1), 0, {kA, kB, kC, kD});
  EXPECT_EQ(act(machine.contribute(kD, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kA, of(2))), RoundAction::kWait);
  const RoundDecision merged = machine.contribute(kC, of(4)).value();
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_THAT(merged.contributors, ElementsAre(kA, kC, kD));
  EXPECT_EQ(merged.total_weight, 7);
  EXPECT_EQ(machine.awaited_ready(kB), Round(1));
  EXPECT_FALSE(machine.contribute(kB, of(1)).ok()) << "the round is closed";

  machine.open(Round(2), 0, {kA, kB, kC, kD});  // kB was given a seat nevertheless
  EXPECT_FALSE(machine.expects(kB)) << "it is still at round 1";
  EXPECT_FALSE(machine.contribute(kB, of(1)).ok());
  machine.caught_up(kB);
  EXPECT_TRUE(machine.expects(kB));
  EXPECT_EQ(machine.gone(kA, Progress::kNothing).action, RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kB, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kC, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kD, of(1))), RoundAction::kMerge) << "three of four";
}

TEST(RoundPolicy, MembersWithoutASeatCountForBackup) {
  RoundMachine machine(policy("backup:1"));
  machine.open(Round(1), 0, {kA, kB, kC}, {kD});
  EXPECT_EQ(machine.needed(), 3u);
  machine.open(Round(2), 0, {kA, kB}, {kC, kD});
  EXPECT_EQ(machine.needed(), 3u);
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kB, of(1))), RoundAction::kWait) << "one of the others";
  EXPECT_FALSE(machine.contribute(kC, of(1)).ok()) << "it has no seat";
  EXPECT_TRUE(machine.admit(kC));
  EXPECT_FALSE(machine.admit(kC));
  EXPECT_EQ(act(machine.contribute(kC, of(1))), RoundAction::kMerge);
  machine.open(Round(3), 0, {kA}, {kC, kD});
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kWait);
  EXPECT_EQ(machine.gone(kC, Progress::kNothing).action, RoundAction::kWait) << "kD may come";
  EXPECT_EQ(machine.gone(kD, Progress::kNothing).action, RoundAction::kMerge);
}

TEST(RoundPolicy, QuorumWithoutGraceClosesAtOnce) {
  RoundMachine machine(policy("quorum:2,grace=0"));
  machine.open(Round(1), 0, {kA, kB, kC}, {}, at(100));
  EXPECT_EQ(act(machine.contribute(kC, of(1), at(101))), RoundAction::kWait);
  EXPECT_EQ(act(machine.contribute(kA, of(1), at(102))), RoundAction::kMerge);
}

TEST(RoundPolicy, GraceFollowsWhatWasSeenOfEachMember) {
  RoundMachine machine(policy("quorum:2,grace=0.5"));
  // Unknown members get the whole grace: half of the 2 s that the quorum took.
  machine.open(Round(1), 0, {kA, kB, kC}, {}, at(0));
  EXPECT_FALSE(machine.deadline());
  ASSERT_TRUE(machine.contribute(kA, of(1), at(1)).ok());
  EXPECT_EQ(act(machine.contribute(kB, of(1), at(2))), RoundAction::kWait);
  EXPECT_EQ(machine.deadline(), at(3));
  EXPECT_EQ(machine.tick(at(2.9)).action, RoundAction::kWait);
  const RoundDecision merged = machine.tick(at(3));
  EXPECT_EQ(merged.action, RoundAction::kMerge);
  EXPECT_THAT(merged.contributors, ElementsAre(kA, kB));
  machine.caught_up(kC, at(60));  // a minute: never worth waiting for
  machine.open(Round(2), 0, {kA, kB, kC}, {}, at(100));
  ASSERT_TRUE(machine.contribute(kA, of(1), at(101)).ok());
  EXPECT_EQ(act(machine.contribute(kB, of(1), at(102))), RoundAction::kMerge);
  machine.caught_up(kC, at(102));

  // One that always comes 0.5 s after the others is waited for, and not much longer than that.
  RoundMachine close(policy("quorum:2,grace=0.5"));
  for (int round = 1; round <= 40; ++round) {
    const double open = 100.0 * round;
    close.open(Round(static_cast<std::uint64_t>(round)), 0, {kA, kB, kC}, {}, at(open));
    ASSERT_TRUE(close.contribute(kA, of(1), at(open + 1)).ok());
    ASSERT_EQ(act(close.contribute(kB, of(1), at(open + 2))), RoundAction::kWait) << round;
    ASSERT_GE(close.deadline(), at(open + 2.5)) << round;
    if (round == 40) {
      EXPECT_LT(close.deadline(), at(open + 2.6));
    }
    ASSERT_EQ(act(close.contribute(kC, of(1), at(open + 2.5))), RoundAction::kMerge) << round;
  }
}

TEST(RoundPolicy, EmptySharesAloneDoNotCloseARound) {
  RoundMachine machine(policy("quorum:1,grace=0"));
  machine.open(Round(1), 0, {kA, kB}, {}, at(0));
  EXPECT_EQ(act(machine.contribute(kA, of(0), at(1))), RoundAction::kWait);
  EXPECT_FALSE(machine.deadline());
  EXPECT_EQ(act(machine.contribute(kB, of(2), at(2))), RoundAction::kMerge);
}

TEST(RoundPolicy, LateContributionsAreDroppedCarriedOrDamped) {
  const auto late = [](const std::string& rule, std::uint64_t rounds_late) {
    RoundMachine machine(policy("backup:1", rule));
    machine.open(Round(1), 0, {kA, kB});
    EXPECT_EQ(act(machine.contribute(kA, of(4))), RoundAction::kMerge);
    for (std::uint64_t r = 2; r <= rounds_late; ++r) {
      machine.open(Round(r), 0, {kA, kB});
      EXPECT_EQ(act(machine.contribute(kA, of(4))), RoundAction::kMerge);
    }
    machine.open(Round(1 + rounds_late), 0, {kA, kB});
    const double weight = machine.late(kB, Round(1), of(8)).value();
    EXPECT_FALSE(machine.late(kB, Round(1), of(8)).ok()) << "twice";
    EXPECT_FALSE(machine.awaited_ready(kB));
    const RoundDecision merged = machine.contribute(kA, of(4)).value();
    EXPECT_EQ(merged.total_weight, 4 + weight);
    EXPECT_EQ(merged.late.size(), weight > 0 ? 1u : 0u);
    return weight;
  };
  EXPECT_EQ(late("drop", 1), 0);
  EXPECT_EQ(late("carry:max=2", 1), 8);
  EXPECT_EQ(late("carry:max=2", 2), 8);
  EXPECT_EQ(late("carry:max=2", 3), 0);
  EXPECT_EQ(late("damp:power=1,max=3", 1), 4);
  EXPECT_EQ(late("damp:power=1,max=3", 3), 2);
  EXPECT_EQ(late("damp:power=2,max=3", 1), 2);
}

TEST(RoundPolicy, AspAppliesEachContributionByItselfAndDampsItsStep) {
  RoundMachine machine(policy("asp:max=2,power=1"));
  machine.open(Round(1), 0, {kA, kB, kC});
  const RoundDecision first = machine.contribute(kA, of(4)).value();
  EXPECT_EQ(first.action, RoundAction::kMerge);
  EXPECT_EQ(first.total_weight, 4);
  EXPECT_EQ(machine.late(kB, Round(1), of(8)).value(), 4) << "one round old: half";
  EXPECT_EQ(machine.late(kC, Round(1), of(6)).value(), 3);
  EXPECT_TRUE(machine.has_late());
  for (const auto& [member, total] : {std::pair(kB, 8.0), std::pair(kC, 6.0)}) {
    machine.open(machine.round().next(), 0, {});
    const RoundDecision each = machine.tick(at(0));
    EXPECT_EQ(each.action, RoundAction::kMerge);
    ASSERT_EQ(each.late.size(), 1u);
    EXPECT_EQ(each.late[0].member, member);
    EXPECT_EQ(each.total_weight, total) << "before damping: what is damped is the step";
  }
  EXPECT_FALSE(machine.has_late());

  machine.open(Round(4), 0, {kA, kB});
  EXPECT_EQ(act(machine.contribute(kB, of(1))), RoundAction::kMerge);
  machine.open(Round(5), 0, {kB, kC}, {kA});
  EXPECT_EQ(machine.late(kA, Round(4), of(4)).value(), 2);
  const RoundDecision late = machine.tick(at(0));
  EXPECT_EQ(late.action, RoundAction::kMerge) << "what comes late closes the round that is open";
  EXPECT_EQ(late.late.size(), 1u);
  EXPECT_TRUE(late.contributors.empty());
  machine.open(Round(6), 0, {kA});
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
  machine.open(Round(7), 0, {kA});
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
  EXPECT_EQ(machine.late(kB, Round(5), of(4)).value(), 0) << "3 rounds old";
}

TEST(RoundPolicy, SspHoldsWhoIsTooFarAheadOfTheSlowest) {
  RoundMachine machine(policy("ssp:1"));
  machine.open(Round(1), 0, {kA, kB});
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
  EXPECT_TRUE(machine.may_begin(kA)) << "1 ahead";
  machine.open(Round(2), 0, {kA}, {kB});
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
  EXPECT_EQ(machine.steps_ahead(kA), 2u);
  EXPECT_EQ(machine.slowest(), kB);
  EXPECT_FALSE(machine.may_begin(kA));
  EXPECT_EQ(machine.late(kB, Round(1), of(1)).value(), 1) << "not damped";
  EXPECT_TRUE(machine.may_begin(kA));
  machine.open(Round(3), 0, {});
  EXPECT_EQ(machine.tick(at(0)).action, RoundAction::kMerge);

  // a newcomer begins where the slowest is
  machine.open(Round(4), 0, {kA, kB, kC});
  EXPECT_EQ(machine.steps_ahead(kC), 0u);
  EXPECT_EQ(machine.steps_ahead(kA), 1u) << "as before the newcomer: it holds nobody back";
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
  EXPECT_FALSE(machine.may_begin(kA));
  machine.open(Round(5), 0, {kD}, {kA, kB, kC});
  EXPECT_FALSE(machine.admit(kA));
  machine.gone(kB, Progress::kNothing);
  machine.gone(kC, Progress::kNothing);
  EXPECT_FALSE(machine.may_begin(kA)) << "D came when the slowest had made 1 step";
  machine.gone(kD, Progress::kNothing);
  EXPECT_TRUE(machine.admit(kA)) << "the slowest are gone";
  EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
}

TEST(RoundPolicy, WhatComesLateAndIsNotFiniteHaltsWhereItWouldHaveCounted) {
  for (const auto& [text, late, action] : {std::tuple("asp", "drop", RoundAction::kHalt),
                                           std::tuple("ssp:4", "drop", RoundAction::kHalt),
                                           std::tuple("backup:1", "carry", RoundAction::kHalt),
                                           std::tuple("backup:1", "drop", RoundAction::kWait)}) {
    RoundMachine machine(policy(text, late));
    machine.open(Round(1), 0, {kA, kB});
    EXPECT_EQ(act(machine.contribute(kA, of(1))), RoundAction::kMerge);
    machine.open(Round(2), 0, {kA}, {kB});
    Contribution broken = of(1);
    broken.nonfinite = true;
    broken.nonfinite_tensor = "layer1.weight";
    EXPECT_EQ(machine.late(kB, Round(1), broken).value(), 0);
    const RoundDecision decision = machine.tick(at(0));
    EXPECT_EQ(decision.action, action) << text << " " << late;
    if (action != RoundAction::kHalt) continue;
    EXPECT_EQ(decision.culprit, kB);
    EXPECT_THAT(decision.text, HasSubstr("layer1.weight is not finite in round 1"));
  }
}

}  // namespace
}  // namespace centroid::server::round_policy_test
