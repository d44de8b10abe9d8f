#include "server/membership/roster.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::server {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr milliseconds kLease{1000};

Roster make_roster(std::size_t max_members = 8, std::size_t max_absent = 4) {
  return Roster({.lease = kLease, .max_members = max_members, .max_absent = max_absent});
}

MemberId join(Roster& roster, const std::string& name, TimePoint now = kStart) {
  return roster.join(name, "host:1", now, 0).value().member;
}

TEST(Roster, RanksFollowNamesNotTheOrderOfArrival) {
  Roster roster = make_roster();
  const MemberId ten = join(roster, "worker-10"), two = join(roster, "worker-2"),
                 one = join(roster, "worker-1");
  roster.form(true);
  EXPECT_EQ(roster.ranked(), (std::vector<MemberId>{one, two, ten}));
  EXPECT_EQ(roster.find(ten)->rank, Rank(2));
}

TEST(Roster, ANewGenerationOnlyWhenMembershipChanged) {
  Roster roster = make_roster();
  join(roster, "a");
  const Generation first = roster.form(true);
  EXPECT_EQ(roster.form(true), first);
  const MemberId b = join(roster, "b");
  EXPECT_EQ(roster.form(true), first.next());
  roster.leave(b, "done");
  EXPECT_EQ(roster.form(true), first.next().next());
  EXPECT_EQ(roster.form(true), first.next().next());
}

TEST(Roster, ARenewedGenerationHasTheSameRanks) {
  Roster roster(Roster::Options{});
  const auto a = roster.join("a", "x", TimePoint(), 0).value().member;
  const auto b = roster.join("b", "x", TimePoint(), 0).value().member;
  const Generation first = roster.form(true);
  EXPECT_EQ(roster.form(true), first);
  roster.renew();
  EXPECT_EQ(roster.form(false), first.next());
  EXPECT_EQ(roster.ranked(), (std::vector<MemberId>{a, b}));
  EXPECT_EQ(roster.form(false), first.next());
}

TEST(Roster, NewcomersStayOutInTheMiddleOfARound) {
  Roster roster = make_roster();
  const MemberId a = join(roster, "a");
  roster.form(true);
  const MemberId b = join(roster, "b");
  roster.form(false);
  EXPECT_EQ(roster.ranked(), std::vector<MemberId>{a});
  EXPECT_TRUE(roster.is_changed());
  roster.form(true);
  EXPECT_EQ(roster.ranked(), (std::vector<MemberId>{a, b}));
}

TEST(Roster, TheNewestOfANameWinsAndTheOlderIsFenced) {
  Roster roster = make_roster();
  const MemberId old = join(roster, "a");
  const auto joined = roster.join("a", "elsewhere:2", kStart, 0).value();
  EXPECT_EQ(joined.fenced, old);
  EXPECT_EQ(roster.find(old)->state, MemberState::kFenced);
  EXPECT_NE(roster.find(old)->reason.find("elsewhere:2"), std::string::npos);
  EXPECT_EQ(roster.present(), 1u);
}

TEST(Roster, SilenceBeyondTheLeaseIsDeathAndASignOfLifeRenewsIt) {
  Roster roster = make_roster();
  const MemberId quiet = join(roster, "quiet"), lively = join(roster, "lively");
  for (int ms = 0; ms <= 1000; ms += 100) {
    roster.heard(lively, kStart + milliseconds(ms));
    EXPECT_TRUE(roster.tick(kStart + milliseconds(ms)).empty()) << ms;
  }
  roster.heard(lively, kStart + milliseconds(1001));
  EXPECT_EQ(roster.tick(kStart + milliseconds(1001)), std::vector<MemberId>{quiet});
  EXPECT_EQ(roster.find(quiet)->state, MemberState::kDead);
  EXPECT_EQ(roster.find(quiet)->reason, "silent for 1001 ms, longer than its lease");
  EXPECT_EQ(roster.find(lively)->state, MemberState::kJoining);
}

TEST(Roster, NobodyDiesBecauseWeOurselvesWereStopped) {
  Roster roster = make_roster();
  const MemberId a = join(roster, "a");
  roster.tick(kStart);
  EXPECT_TRUE(roster.tick(kStart + 100 * kLease).empty());
  EXPECT_TRUE(is_present(roster.find(a)->state));
  for (int ms = 100; ms <= 1000; ms += 100)
    EXPECT_TRUE(roster.tick(kStart + 100 * kLease + milliseconds(ms)).empty());
  EXPECT_EQ(roster.tick(kStart + 101 * kLease + milliseconds(1)).size(), 1u);
}

TEST(Roster, ADrainingMemberFinishesItsRoundAndGetsNoNextOne) {
  Roster roster = make_roster();
  const MemberId a = join(roster, "a"), b = join(roster, "b");
  roster.form(true);
  EXPECT_TRUE(roster.drain(b));
  const Generation both = roster.form(false);
  EXPECT_EQ(roster.ranked(), (std::vector<MemberId>{a, b}));
  EXPECT_EQ(roster.form(true), both.next()) << "the peers of a generation never change";
  EXPECT_EQ(roster.ranked(), std::vector<MemberId>{a});
  EXPECT_TRUE(roster.leave(b, "drained"));
  EXPECT_FALSE(roster.drain(b));
}

TEST(Roster, AFullClusterRefusesStrangersButNotTheReturnOfAName) {
  Roster roster = make_roster(2);
  join(roster, "a");
  join(roster, "b");
  const auto refused = roster.join("c", "host:1", kStart, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(roster.join("a", "host:1", kStart, 0).ok());
}

TEST(Roster, RandomEventsKeepTheInvariants) {
  const std::uint64_t seed = 20260101;
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  Roster roster = make_roster(6, 3);
  TimePoint now = kStart;
  std::set<MemberId> ever;
  Generation last;
  std::vector<MemberId> of_last;
  for (int i = 0; i < 20000; ++i) {
    const std::string name(1, static_cast<char>('a' + rng.below(8)));
    const MemberId some(rng.below(ever.size() + 2));
    switch (rng.below(6)) {
      case 0:
        if (const auto joined = roster.join(name, "h", now, 0); joined.ok()) {
          EXPECT_TRUE(ever.insert(joined->member).second);
        }
        break;
      case 1:
        roster.leave(some, "left");
        break;
      case 2:
        roster.lost(some, "lost");
        break;
      case 3:
        roster.heard(some, now);
        break;
      case 4:
        roster.drain(some);
        break;
      default:
        now += milliseconds(rng.below(300));
        roster.tick(now);
    }
    if (rng.below(4) == 0) {
      const bool changed = roster.is_changed();
      const Generation generation = roster.form(rng.below(2) == 0);
      EXPECT_TRUE(generation == last || (changed && generation == last.next()));
      if (generation == last) {
        EXPECT_EQ(roster.ranked(), of_last);
      }
      last = generation;
      of_last = roster.ranked();
    }
    std::set<std::string> names;
    std::size_t absent = 0;
    for (const auto& [id, member] : roster.members()) {
      if (is_present(member.state)) {
        EXPECT_TRUE(names.insert(member.name).second)
            << "two present members named " << member.name;
      }
      absent += is_present(member.state) ? 0 : 1;
      EXPECT_TRUE(is_present(member.state) || !member.rank);
    }
    ASSERT_LE(names.size(), 6u);
    ASSERT_LE(absent, 4u);
    const auto ranked = roster.ranked();
    ASSERT_EQ(std::set(ranked.begin(), ranked.end()).size(), ranked.size());
  }
}

}  // namespace
}  // namespace centroid::server
