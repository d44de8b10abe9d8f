#include "server/aggregate/round_policy.h"

#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/aggregate/round_machine.h"

namespace centroid::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MemberId kA(11), kB(12), kC(13), kD(14);

TimePoint at(double seconds) {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

RoundPolicy policy(const std::string& text, const std::string& late = "drop") {
  RoundPolicy out;
  const Status parsed = parse_policy(text, late, out);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message());
  return out;
}

Contribution of(double weight) {
  Contribution contribution;
  contribution.weight = weight;
  return contribution;
}

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
              HasSubstr("known are bsp, backup:B, quorum:K,grace=0.5, ssp:S and asp"));
  EXPECT_THAT(message("backup", "drop"), HasSubstr("a number behind : is missing"));
  EXPECT_THAT(message("backup:0", "drop"), HasSubstr("whole number from 1 to 4096"));
  EXPECT_THAT(message("backup:1.5", "drop"), HasSubstr("whole number"));
  EXPECT_THAT(message("backup:1,grace=1", "drop"), HasSubstr("\"grace=1\" is unknown"));
  EXPECT_THAT(message("quorum:2,grace=-1", "drop"), HasSubstr("number from 0 to 100"));
  EXPECT_THAT(message("quorum:2,grace=1,grace=1", "drop"), HasSubstr("stands twice"));
  EXPECT_THAT(message("quorum:grace=1", "drop"), HasSubstr("missing"));
  EXPECT_THAT(message("backup:1", "keep"), HasSubstr("drop, carry:max=4 and damp"));
  EXPECT_THAT(message("backup:1", "carry:max=0"), HasSubstr("whole number from 1"));
  EXPECT_THAT(message("bsp", "carry"), HasSubstr("nothing is late"));
  EXPECT_THAT(message("asp:8", "drop"), HasSubstr("\"8\" is unknown"));
  EXPECT_THAT(message("ssp", "drop"), HasSubstr("a number behind : is missing"));
  EXPECT_THAT(message("ssp:-1", "drop"), HasSubstr("whole number from 0"));
  EXPECT_THAT(message("ssp:1", "carry"), HasSubstr("says itself what becomes"));
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
  EXPECT_EQ(machine.owed(kB), Round(1));
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
    EXPECT_FALSE(machine.owed(kB));
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

/// A machine with a clock and a ledger beside it that is written independently: after each event it
/// checks that contributions count wholly or not at all, at most once, and that rounds close when
/// they must and not before.
class Ledger {
 public:
  explicit Ledger(RoundPolicy policy) : policy_(policy), machine_(policy) { open(); }

  static constexpr int kMembers = 3;
  static constexpr int kEvents = 4 * kMembers + 1;

  /// Do event number `event`, if it can happen now. False: it cannot.
  bool apply(int event) {
    const int m = event % kMembers;
    const MemberId id(static_cast<std::uint64_t>(m) + 1);
    if (event == 4 * kMembers) return pass_time();
    if (gone_.count(m) > 0) return false;
    switch (event / kMembers) {
      case 0:
        return contribute(m, id);
      case 1: {
        gone_.insert(m);
        owes_.erase(m);
        others_.erase(m);
        steps_.erase(m);
        settle(machine_.gone(id, Progress::kNothing, now_));
        return true;
      }
      case 2: {
        if (owes_.count(m) == 0) return false;
        const std::uint64_t origin = owes_[m];
        const auto weight = machine_.late(id, Round(origin), of(16.0 * (m + 1)), now_);
        EXPECT_TRUE(weight.ok());
        const double factor = expected_factor(origin);
        EXPECT_EQ(*weight, static_cast<double>(static_cast<float>(16.0 * (m + 1) * factor)));
        if (*weight > 0) pending_late_.push_back({m, origin, *weight});
        owes_.erase(m);
        if (steps_.count(m) > 0) ++steps_[m];
        if (policy_.applies_each() && is_open_ && *weight > 0) settle(machine_.tick(now_));
        enter(m, id);
        return true;
      }
      default:
        if (owes_.count(m) == 0) return false;
        machine_.caught_up(id, now_);
        owes_.erase(m);
        if (steps_.count(m) > 0) ++steps_[m];
        enter(m, id);
        return true;
    }
  }

  std::size_t merges = 0, lates = 0;

 private:
  void open() {
    const bool is_for_late = policy_.applies_each() && !pending_late_.empty();
    seats_.clear();
    done_.clear();
    others_.clear();
    std::vector<MemberId> members, others;
    for (int m = 0; m < kMembers; ++m) {
      if (gone_.count(m) > 0) continue;
      if (policy_.kind == PolicyKind::kSsp) steps_.emplace(m, least_steps());
      const MemberId id(static_cast<std::uint64_t>(m) + 1);
      EXPECT_EQ(round_ == 0 || machine_.may_begin(id), may_begin(m));
      const bool is_other = owes_.count(m) > 0 || !may_begin(m) || is_for_late;
      (is_other ? others_ : seats_).insert(m);
      (is_other ? others : members).push_back(id);
    }
    present_ = members.size() + others.size();
    is_open_ = !members.empty() || is_for_late;
    EXPECT_EQ(machine_.has_late(), !pending_late_.empty());
    if (!is_open_) {
      if (gone_.size() < kMembers) {
        EXPECT_FALSE(owes_.empty()) << "all wait, for nobody";
      }
      return;
    }
    ++round_;
    opened_ = now_;
    enough_at_.reset();
    machine_.open(Round(round_), 0, members, others, now_);
    if (is_for_late) settle(machine_.tick(now_));
  }

  std::uint64_t least_steps() const {
    std::uint64_t least = steps_.empty() ? 0 : ~std::uint64_t{0};
    for (const auto& [m, steps] : steps_) least = std::min(least, steps);
    return least;
  }

  bool may_begin(int m) const {
    const auto own = steps_.find(m);
    return own == steps_.end() || own->second - least_steps() <= policy_.count;
  }

  /// Who is not behind any more takes a seat in the open round.
  void enter(int m, MemberId id) {
    const bool may = is_open_ && may_begin(m) && others_.erase(m) > 0;
    EXPECT_EQ(machine_.admit(id), may);
    if (may) seats_.insert(m);
  }

  bool contribute(int m, MemberId id) {
    const bool may = is_open_ && seats_.count(m) > 0 && done_.count(m) == 0 && owes_.count(m) == 0;
    auto decision = machine_.contribute(id, of(1 << m), now_);
    EXPECT_EQ(decision.ok(), may);
    if (!may) return false;
    done_.insert(m);
    if (steps_.count(m) > 0) ++steps_[m];
    EXPECT_TRUE(policy_.kind != PolicyKind::kSsp || steps_[m] - least_steps() <= policy_.count + 1)
        << "beyond the bound";
    settle(std::move(decision).value());
    return true;
  }

  bool pass_time() {
    if (!is_open_) {
      open();
      return true;
    }
    now_ += std::chrono::seconds(1);
    settle(machine_.tick(now_));
    return true;
  }

  std::size_t alive() const {
    std::size_t n = others_.size();
    for (const int m : seats_) n += gone_.count(m) == 0 || done_.count(m) > 0;
    return n;
  }

  std::size_t enough() const {
    std::size_t n = present_;
    if (policy_.kind == PolicyKind::kBackup)
      n = n > policy_.count ? n - policy_.count : 1;
    else if (policy_.kind == PolicyKind::kQuorum)
      n = policy_.count;
    else if (policy_.applies_each())
      n = 1;
    return std::min<std::size_t>(n, alive());
  }

  double expected_factor(std::uint64_t origin) const {
    const std::uint64_t into = is_open_ ? round_ : round_ + 1;
    if (policy_.late == LateRule::kDrop || into - origin > policy_.max_late) return 0;
    if (policy_.late == LateRule::kCarry) return 1;
    return 1 / std::pow(1 + static_cast<double>(into - origin), policy_.power);
  }

  void settle(const RoundDecision& decision) {
    if (!is_open_) {
      EXPECT_EQ(decision.action, RoundAction::kWait);
      return;
    }
    const bool is_enough = done_.size() >= enough() && !done_.empty();
    if (is_enough && !enough_at_) enough_at_ = now_;
    if (decision.action == RoundAction::kWait) {
      EXPECT_TRUE(machine_.is_open());
      EXPECT_LT(done_.size(), alive());
      if (policy_.applies_each()) {
        EXPECT_TRUE(done_.empty() && pending_late_.empty()) << "each contribution closes a round";
      }
      if (policy_.kind == PolicyKind::kBackup) {
        EXPECT_FALSE(is_enough);
      }
      if (policy_.kind == PolicyKind::kQuorum && is_enough) {
        EXPECT_LT(now_, *enough_at_ + (*enough_at_ - opened_) / 2) << "beyond the grace";
        ASSERT_TRUE(machine_.deadline().has_value());
        EXPECT_GT(*machine_.deadline(), now_);
      }
      return;
    }
    EXPECT_FALSE(machine_.is_open());
    is_open_ = false;
    if (decision.action == RoundAction::kDeserted) {
      EXPECT_TRUE(done_.empty());
      return;
    }
    ASSERT_EQ(decision.action, RoundAction::kMerge);
    EXPECT_TRUE(is_enough || done_.size() == alive() || policy_.applies_each());
    if (policy_.applies_each()) {
      EXPECT_EQ(decision.contributors.size() + decision.late.size(), 1u) << "each by itself";
    }
    if (policy_.kind == PolicyKind::kBsp) {
      EXPECT_EQ(done_.size(), alive());
    }
    double total = 0;
    std::set<int> counted_now;
    for (const MemberId id : decision.contributors) {
      const int m = static_cast<int>(id.value) - 1;
      EXPECT_TRUE(done_.count(m) > 0) << "never contributed";
      EXPECT_TRUE(counted_.insert({m, round_}).second) << "counted twice";
      counted_now.insert(m);
      total += 1 << m;
    }
    EXPECT_EQ(counted_now, done_) << "complete contributions count";
    for (const LateContribution& one : decision.late) {
      const int m = static_cast<int>(one.member.value) - 1;
      EXPECT_TRUE(counted_.insert({m, one.round.value}).second) << "counted twice";
      ASSERT_FALSE(pending_late_.empty());
      EXPECT_EQ(pending_late_.front(), std::tuple(m, one.round.value, one.weight));
      pending_late_.pop_front();
      total += policy_.applies_each() ? 16.0 * (m + 1) : one.weight;
      ++lates;
    }
    if (!policy_.applies_each()) {
      EXPECT_TRUE(pending_late_.empty()) << "an accepted late contribution did not count";
    }
    EXPECT_EQ(decision.total_weight, total);
    ++merges;
    for (const int m : seats_) {
      const MemberId id(static_cast<std::uint64_t>(m) + 1);
      if (gone_.count(m) == 0 && done_.count(m) == 0) owes_.emplace(m, round_);
      EXPECT_EQ(machine_.owed(id).has_value(), owes_.count(m) > 0);
    }
  }

  RoundPolicy policy_;
  RoundMachine machine_;
  TimePoint now_ = at(1000), opened_;
  std::optional<TimePoint> enough_at_;
  std::uint64_t round_ = 0;
  bool is_open_ = false;
  std::set<int> seats_, others_, done_, gone_;
  std::size_t present_ = 0;
  std::map<int, std::uint64_t> owes_;
  std::set<std::pair<int, std::uint64_t>> counted_;
  std::deque<std::tuple<int, std::uint64_t, double>> pending_late_;
  std::map<int, std::uint64_t> steps_;  // ssp
};

std::vector<RoundPolicy> all_policies() {
  return {policy("bsp"),
          policy("backup:1"),
          policy("backup:2", "carry:max=1"),
          policy("backup:1", "damp:power=1,max=2"),
          policy("quorum:1,grace=0", "carry"),
          policy("quorum:2,grace=0.5"),
          policy("quorum:1,grace=0.5", "damp"),
          policy("asp:max=2,power=1"),
          policy("ssp:0"),
          policy("ssp:1")};
}

TEST(RoundPolicy, EveryShortSequenceOfEventsKeepsTheLedger) {
  std::size_t sequences = 0, merges = 0, lates = 0;
  const std::function<void(const Ledger&, int)> extend = [&](const Ledger& ledger, int depth) {
    if (::testing::Test::HasFailure()) return;
    if (depth == 0) {
      ++sequences;
      merges += ledger.merges;
      lates += ledger.lates;
      return;
    }
    for (int event = 0; event < Ledger::kEvents; ++event) {
      Ledger next = ledger;
      if (next.apply(event)) extend(next, depth - 1);
    }
  };
  for (const RoundPolicy& one : all_policies()) extend(Ledger(one), 6);
  std::printf("%zu sequences, %zu merges, %zu late contributions counted\n", sequences, merges,
              lates);
  EXPECT_GT(sequences, 100'000u);
  EXPECT_GT(lates, 1000u);
}

TEST(RoundPolicy, LongRandomSequencesKeepTheLedger) {
  constexpr std::uint64_t kSeed = 20261120;
  std::size_t merges = 0, lates = 0;
  for (const RoundPolicy& one : all_policies()) {
    for (std::uint64_t run = 0; run < 40; ++run) {
      CounterRng rng(kSeed, run);
      Ledger ledger(one);
      for (int step = 0; step < 400; ++step) {
        int event = static_cast<int>(rng.below(Ledger::kEvents));
        // Deaths end the game early, so they are rare.
        if (event / Ledger::kMembers == 1 && rng.below(200) != 0) event = 0;
        ledger.apply(event);
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "seed " << kSeed << ", run " << run << ", step " << step;
      }
      merges += ledger.merges;
      lates += ledger.lates;
    }
  }
  std::printf("seed %llu: %zu merges, %zu late contributions counted\n",
              static_cast<unsigned long long>(kSeed), merges, lates);
  EXPECT_GT(merges, 1000u);
}

}  // namespace
}  // namespace centroid::server
