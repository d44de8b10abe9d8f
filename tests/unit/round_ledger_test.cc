#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "server/aggregate/round_machine.h"
#include "server/aggregate/round_policy.h"
#include "tests/support/round_values.h"

/// The round machine under every short, and under long random sequences of events.
namespace centroid::server {
namespace {

/// A machine with a clock and a ledger beside it that is written independently: after each event it
/// checks that contributions count wholly or not at all, at most once, and that rounds close when
/// they must and not before.
class Ledger {
 public:
  /// `takes_newcomers`: somebody may come while it goes on
  Ledger(RoundPolicy policy, bool takes_newcomers)
      : policy_(policy), machine_(policy), has_joined_(!takes_newcomers) {
    open();
  }

  /// The last of them comes later: a newcomer, or one that was lost and is here again, for an
  /// admission is a member of its own.
  static constexpr int kMembers = 4, kNewcomer = kMembers - 1;
  static constexpr int kOfMembers = 10, kOfAll = 4;  ///< kinds of events
  static constexpr int kEvents = kOfMembers * kMembers + kOfAll;

  /// Do event number `event`, if it can happen now. False: it cannot.
  bool apply(int event) {
    const int m = event % kMembers;
    const MemberId id(static_cast<std::uint64_t>(m) + 1);
    if (is_halted_) return false;
    if (event == kOfMembers * kMembers) return pass_time();
    if (event == kOfMembers * kMembers + 1) return time_out({0, 1, 2, 3}, Progress::kNothing);
    if (event == kOfMembers * kMembers + 2) return change_policy();
    if (event == kOfMembers * kMembers + 3) return join();
    if (gone_.count(m) > 0) return false;
    switch (event / kMembers) {
      case 0:
        return contribute(m, id, true);
      case 1:
        return go(m, id, Progress::kNothing);
      case 5:  // sums that grow as contributions come are those of bsp
        return is_star() && go(m, id, Progress::kPart);
      case 6:
        return time_out({m}, Progress::kNothing);
      case 7:
        return time_out({m}, Progress::kPart);
      case 8:
        return fail(m, id);
      case 9:
        if (owes_.erase(m) == 0) return false;
        machine_.forgive(id);
        enter(m, id);
        return true;
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
      case 3:
        return owes_.count(m) > 0 ? late_not_finite(m, id) : contribute(m, id, false);
      default:
        if (away_.erase(m) > 0) {
          machine_.caught_up(id, now_);
          return true;
        }
        if (owes_.count(m) == 0) return false;
        machine_.caught_up(id, now_);
        owes_.erase(m);
        if (steps_.count(m) > 0) ++steps_[m];
        enter(m, id);
        return true;
    }
  }

  std::size_t merges = 0, lates = 0, skips = 0, retries = 0;
  std::size_t of_newcomers = 0;  ///< contributions that counted

 private:
  /// It is there from the next round on; the open one neither waits for it nor takes anything of
  /// it.
  bool join() {
    if (std::exchange(has_joined_, true)) return false;
    gone_.erase(kNewcomer);
    const MemberId id(kMembers);
    EXPECT_FALSE(machine_.expects(id));
    EXPECT_FALSE(machine_.contribute(id, of(1), now_).ok()) << "it has no seat";
    EXPECT_FALSE(machine_.admit(id));
    return true;
  }

  bool is_star() const { return policy_.kind == PolicyKind::kBsp && !policy_.is_joint; }
  bool is_missing(int m) const {
    return is_open_ && seats_.count(m) > 0 && gone_.count(m) == 0 && done_.count(m) == 0;
  }
  /// Contributions that are whole and that nobody can send again.
  bool holds_of_the_gone() const {
    return std::ranges::any_of(done_, [this](int m) { return gone_.count(m) > 0; });
  }

  bool go(int m, MemberId id, Progress progress) {
    const bool was_missing = is_missing(m);
    gone_.insert(m);
    owes_.erase(m);
    others_.erase(m);
    steps_.erase(m);
    away_.erase(m);
    const RoundDecision decision = machine_.gone(id, progress, now_);
    if (!was_missing || (!policy_.is_joint && progress == Progress::kNothing)) {
      settle(decision);
      return true;
    }
    const bool anybody = std::ranges::any_of(seats_, [this](int other) {
      return gone_.count(other) == 0 || (!policy_.is_joint && done_.count(other) > 0);
    });
    EXPECT_EQ(decision.action, anybody ? RoundAction::kRetry : RoundAction::kDeserted);
    repeat({});  // with nobody, where it is deserted
    return true;
  }

  /// Who lives has had its time, with exchange star and bsp.
  bool time_out(const std::set<int>& whom, Progress progress) {
    if (!is_star()) return false;
    std::set<int> silent;
    std::vector<MemberId> told;
    for (const int m : whom) {
      if (is_missing(m)) silent.insert(m);
      told.push_back(MemberId(static_cast<std::uint64_t>(m) + 1));
    }
    const bool anybody = std::ranges::any_of(seats_, [&](int m) {
      return silent.count(m) == 0 && (gone_.count(m) == 0 || done_.count(m) > 0);
    });
    const RoundDecision decision = machine_.timed_out(told, progress, now_);
    const bool is_kept = holds_of_the_gone();
    if (silent.empty() || !anybody) {
      EXPECT_EQ(decision.action, RoundAction::kWait);
      for (const int m : silent)
        EXPECT_TRUE(machine_.is_missing(MemberId(static_cast<std::uint64_t>(m) + 1)));
      return !silent.empty();
    }
    for (const int m : silent)
      EXPECT_FALSE(machine_.is_missing(MemberId(static_cast<std::uint64_t>(m) + 1)));
    away_.insert(silent.begin(), silent.end());
    if (decision.action == RoundAction::kRetry) {
      EXPECT_TRUE(!is_kept || progress == Progress::kPart)
          << "a complete contribution is given up though nobody was lost with a part of one";
      repeat(silent);
      return true;
    }
    EXPECT_TRUE(is_kept) << "without a cause others wait, or are not asked again";
    for (const int m : silent) seats_.erase(m);
    settle(decision);
    return true;
  }

  /// It could not complete the sum that all make together.
  bool fail(int m, MemberId id) {
    if (!policy_.is_joint) return false;
    const bool may = is_missing(m);
    const RoundDecision decision = machine_.failed(id, "planted");
    EXPECT_EQ(decision.action, may ? RoundAction::kRetry : RoundAction::kWait);
    if (may) repeat({});
    return may;
  }

  /// The attempt is over; another one begins with who is left.
  void repeat(const std::set<int>& without) {
    EXPECT_FALSE(machine_.is_open());
    ++retries;
    std::erase_if(seats_, [&](int m) { return gone_.count(m) > 0 || without.count(m) > 0; });
    done_.clear();
    broken_.clear();
    std::vector<MemberId> members;
    for (const int m : seats_) members.push_back(MemberId(static_cast<std::uint64_t>(m) + 1));
    is_open_ = !members.empty();
    if (!is_open_) return;
    present_ = members.size();
    opened_ = now_;
    enough_at_.reset();
    machine_.open(Round(round_), ++attempt_, members, {}, now_);
    EXPECT_EQ(machine_.missing(), members) << "nothing of the attempt before is left";
  }

  /// An operator's, between two rounds.
  bool change_policy() {
    if (is_open_ || !policy_.is_elastic()) return false;
    is_changed_ = !is_changed_;
    policy_.max_late = is_changed_ ? policy_.max_late + 1 : policy_.max_late - 1;
    if (policy_.kind == PolicyKind::kBackup || policy_.kind == PolicyKind::kQuorum)
      policy_.count = is_changed_ ? policy_.count + 1 : policy_.count - 1;
    machine_.set_policy(policy_);
    return true;
  }

  bool late_not_finite(int m, MemberId id) {
    const bool halts = policy_.nonfinite == NonFinitePolicy::kHalt && expected_factor(owes_[m]) > 0;
    Contribution broken = of(16.0 * (m + 1));
    broken.nonfinite = true;
    const auto weight = machine_.late(id, Round(owes_[m]), broken, now_);
    EXPECT_TRUE(weight.ok() && *weight == 0) << "it may not count";
    owes_.erase(m);
    if (steps_.count(m) > 0) ++steps_[m];
    if (!halts) {
      enter(m, id);
      return true;
    }
    is_halted_ = true;  // with the next decision
    if (is_open_) {
      EXPECT_EQ(machine_.tick(now_).action, RoundAction::kHalt);
    }
    return true;
  }

  void open() {
    const bool is_for_late = policy_.applies_each() && !pending_late_.empty();
    seats_.clear();
    done_.clear();
    broken_.clear();
    others_.clear();
    std::vector<MemberId> members, others;
    for (int m = 0; m < kMembers; ++m) {
      if (gone_.count(m) > 0 || away_.count(m) > 0) continue;
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
    EXPECT_EQ(machine_.late_waiting(), pending_late_.size());
    if (!is_open_) {
      if (gone_.size() < kMembers) {
        EXPECT_FALSE(owes_.empty() && away_.empty()) << "all wait, for nobody";
      }
      return;
    }
    ++round_;
    attempt_ = 0;
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

  /// Of one that is not finite chunks may be left away, then it has no weight.
  bool contribute(int m, MemberId id, bool is_finite) {
    const bool may = is_open_ && seats_.count(m) > 0 && done_.count(m) == 0 && owes_.count(m) == 0;
    Contribution contribution = of(is_finite || m == 1 ? 1 << m : 0);
    contribution.nonfinite = !is_finite;
    auto decision = machine_.contribute(id, contribution, now_);
    EXPECT_EQ(decision.ok(), may);
    if (!may) return false;
    done_.insert(m);
    if (!is_finite) broken_.insert(m);
    has_weight_ = contribution.weight > 0 || (done_.size() > 1 && has_weight_);
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
    if (machine_.is_open()) {
      EXPECT_EQ(machine_.needed(), enough());
    }
    if (done_.size() >= enough() && !done_.empty() && !enough_at_) enough_at_ = now_;
    const bool is_enough = done_.size() >= enough() && !done_.empty() && has_weight_;
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
    if (decision.action == RoundAction::kHalt) {
      EXPECT_TRUE(!broken_.empty() && policy_.nonfinite == NonFinitePolicy::kHalt);
      is_halted_ = true;
      return;
    }
    EXPECT_TRUE(is_enough || done_.size() == alive() || policy_.applies_each());
    for (const int m : seats_)
      if (gone_.count(m) == 0 && done_.count(m) == 0) owes_.emplace(m, round_);
    for (const int m : seats_)
      EXPECT_EQ(machine_.awaited_ready(MemberId(static_cast<std::uint64_t>(m) + 1)).has_value(),
                owes_.count(m) > 0);
    if (decision.action == RoundAction::kSkip) {
      EXPECT_FALSE(broken_.empty()) << "why was it skipped?";
      EXPECT_TRUE(decision.late.empty()) << "what is late waits for a round that counts";
      EXPECT_EQ(machine_.late_waiting(), pending_late_.size());
      ++skips;
      return;
    }
    ASSERT_EQ(decision.action, RoundAction::kMerge);
    EXPECT_TRUE(broken_.empty()) << "it may not count";
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
      of_newcomers += m == kNewcomer;
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
  }

  RoundPolicy policy_;
  RoundMachine machine_;
  TimePoint now_ = at(1000), opened_;
  std::optional<TimePoint> enough_at_;
  std::uint64_t round_ = 0;
  std::uint32_t attempt_ = 0;
  bool is_open_ = false, is_halted_ = false, has_weight_ = false, is_changed_ = false;
  bool has_joined_;
  std::set<int> seats_, others_, done_, broken_;
  std::set<int> gone_ = {kNewcomer};
  std::set<int> away_;  // timed out, and not done with that round
  std::size_t present_ = 0;
  std::map<int, std::uint64_t> owes_;
  std::set<std::pair<int, std::uint64_t>> counted_;
  std::deque<std::tuple<int, std::uint64_t, double>> pending_late_;
  std::map<int, std::uint64_t> steps_;  // ssp
};

std::vector<RoundPolicy> all_policies() {
  std::vector<RoundPolicy> all{policy("bsp"),
                               policy("backup:1"),
                               policy("backup:2", "carry:max=1"),
                               policy("backup:1", "damp:power=1,max=2"),
                               policy("quorum:1,grace=0", "carry"),
                               policy("quorum:2,grace=0.5"),
                               policy("quorum:1,grace=0.5", "damp"),
                               policy("asp:max=2,power=1"),
                               policy("ssp:0"),
                               policy("ssp:1")};
  all.push_back(policy("bsp"));
  all.back().is_joint = true;
  for (RoundPolicy& one : all) one.nonfinite = NonFinitePolicy::kSkip;
  all.push_back(policy("asp:max=2,power=1"));  // that one halts, as does
  all.push_back(policy("quorum:1,grace=0", "carry"));
  return all;
}

/// Of random sequences: another one each time, or the one of TEST_SEED.
std::uint64_t seed_of_run() {
  const char* const given = std::getenv("TEST_SEED");
  return given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 10);
}

// Sanitizers make each event ten to thirty times slower: sequences one event shorter there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kLength = 5;
constexpr std::size_t kLeastOfNewcomers = 8;  // who comes needs most events
#else
constexpr int kLength = 6;
constexpr std::size_t kLeastOfNewcomers = 150;
#endif

/// Members without an event so far are alike: only the first of them gets its first event.
TEST(RoundLedger, EveryShortSequenceOfEventsKeepsTheLedger) {
  std::size_t sequences = 0, merges = 0, lates = 0, retries = 0, of_newcomers = 0;
  const std::function<void(const Ledger&, int, int)> extend = [&](const Ledger& ledger, int depth,
                                                                  int members) {
    if (::testing::Test::HasFailure()) return;
    if (depth == 0) {
      ++sequences;
      merges += ledger.merges;
      lates += ledger.lates;
      retries += ledger.retries;
      of_newcomers += ledger.of_newcomers;
      return;
    }
    for (int event = 0; event < Ledger::kEvents; ++event) {
      const bool is_of_member = event < Ledger::kOfMembers * Ledger::kMembers;
      const int member = is_of_member ? event % Ledger::kMembers : 0;
      if (is_of_member && member != Ledger::kNewcomer && member > members) continue;
      const bool is_first = is_of_member && member == members && member != Ledger::kNewcomer;
      Ledger next = ledger;
      if (next.apply(event)) extend(next, depth - 1, members + is_first);
    }
  };
  for (const RoundPolicy& one : all_policies()) {
    extend(Ledger(one, false), kLength, 0);
    extend(Ledger(one, true), kLength - 1, 0);
  }
  std::printf("%zu sequences, %zu merges, %zu late contributions counted, %zu attempts repeated\n",
              sequences, merges, lates, retries);
  EXPECT_GT(sequences, 100'000u);
  EXPECT_GT(lates, 1000u);
  EXPECT_GT(retries, 1000u);
  EXPECT_GT(of_newcomers, kLeastOfNewcomers);
}

TEST(RoundLedger, LongRandomSequencesKeepTheLedger) {
  const std::uint64_t seed = seed_of_run();
  std::printf("TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::size_t merges = 0, lates = 0, skips = 0;
  for (const RoundPolicy& one : all_policies()) {
    for (std::uint64_t run = 0; run < 40; ++run) {
      CounterRng rng(seed, run);
      Ledger ledger(one, true);
      for (int step = 0; step < 400; ++step) {
        int event = static_cast<int>(rng.below(Ledger::kEvents));
        // Deaths end the game early, so they are rare.
        const int kind = event / Ledger::kMembers;
        const bool is_death =
            event < Ledger::kOfMembers * Ledger::kMembers && (kind == 1 || kind == 5);
        if (is_death && rng.below(200) != 0) event = 0;
        if ((kind == 3 || (kind >= 6 && kind <= 8)) && rng.below(4) != 0) event = 0;
        ledger.apply(event);
        ASSERT_FALSE(::testing::Test::HasFailure())
            << "TEST_SEED=" << seed << ", run " << run << ", step " << step;
      }
      merges += ledger.merges;
      lates += ledger.lates;
      skips += ledger.skips;
    }
  }
  std::printf("%zu merges, %zu late contributions counted, %zu rounds skipped\n", merges, lates,
              skips);
  EXPECT_GT(merges, 1000u);
  EXPECT_GT(skips, 100u);
}

}  // namespace
}  // namespace centroid::server
