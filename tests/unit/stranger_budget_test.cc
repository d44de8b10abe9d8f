// What peers may use of a port before it knows them. No sockets: time comes with the calls.
#include "transport/stranger_budget.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/base/refusal.h"

namespace centroid::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Id = StrangerPlaces::Id;

std::string from(const std::string& host, int port = 1) {
  return host + ":" + std::to_string(port);
}

TEST(StrangerPlaces, ManyFromFewAddressesDisplaceEachOtherAndNobodyElse) {
  StrangerPlaces places(320);
  std::set<Id> honest;
  for (int i = 0; i < 5000; ++i) {
    if (i % 500 == 250) honest.insert(places.arrive(from("10.0.0." + std::to_string(i / 500))).id);
    const auto arrival = places.arrive(from("192.168.0." + std::to_string(i % 4), i));
    EXPECT_FALSE(arrival.displaced && honest.contains(*arrival.displaced));
  }
  EXPECT_EQ(honest.size(), 10U);
  EXPECT_EQ(places.size(), 320U);
}

TEST(StrangerPlaces, OneAddressMayHaveEveryPlaceThatNobodyElseWants) {
  StrangerPlaces places(4000);
  for (int i = 0; i < 4000; ++i)
    EXPECT_FALSE(places.arrive(from("127.0.0.1", i)).displaced.has_value());
  EXPECT_EQ(places.arrive(from("127.0.0.1")).displaced, Id{1}) << "then the oldest makes room";
  EXPECT_EQ(places.arrive(from("10.0.0.1")).displaced, Id{2});
}

TEST(StrangerPlaces, WhoHasGreetedIsDisplacedOnlyWhereAllHave) {
  StrangerPlaces places(3);
  const Id known = places.arrive(from("10.0.0.1")).id;
  places.greeted(known);
  const Id same = places.arrive(from("10.0.0.1")).id;
  places.greeted(same);
  const Id silent = places.arrive(from("10.0.0.2")).id;
  const auto next = places.arrive(from("10.0.0.3"));
  EXPECT_EQ(next.displaced, silent);
  places.greeted(next.id);
  EXPECT_EQ(places.arrive(from("10.0.0.4")).displaced, known) << "of the address with most";
}

TEST(StrangerPlaces, APlaceThatIsLeftIsFree) {
  StrangerPlaces places(1);
  const Id first = places.arrive(from("10.0.0.1")).id;
  places.leave(first);
  places.leave(first);
  const auto second = places.arrive(from("10.0.0.2"));
  EXPECT_FALSE(second.displaced.has_value());
  places.greeted(first);  // of one that is gone: no effect
  EXPECT_EQ(places.arrive(from("10.0.0.3")).displaced, second.id);
  places.set_most(0);
  EXPECT_TRUE(places.arrive(from("10.0.0.4")).displaced.has_value()) << "one there always is";
  EXPECT_EQ(places.size(), 1U);
}

using Present = std::map<Id, std::pair<std::string, bool>>;  // address, and whether it has greeted

/// By the rule's words, one after the other.
Id victim_of(const Present& present) {
  const auto is_silent = [](const auto& one) { return !one.second.second; };
  const bool is_any = std::ranges::none_of(present, is_silent);
  std::map<std::string, std::size_t> counts;
  for (const auto& one : present)
    if (is_any || is_silent(one)) ++counts[one.second.first];
  std::size_t most = 0;
  for (const auto& [address, count] : counts) most = std::max(most, count);
  for (const auto& one : present)
    if ((is_any || is_silent(one)) && counts[one.second.first] == most) return one.first;
  return 0;
}

TEST(StrangerPlaces, RandomSequencesKeepTheRules) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    CounterRng random(seed, 0);
    const std::size_t most = 1 + random.below(30);
    StrangerPlaces places(most);
    Present present;
    for (int step = 0; step < 2000; ++step) {
      const auto any = present.empty()
                           ? Id{0}
                           : std::next(present.begin(),
                                       static_cast<std::ptrdiff_t>(random.below(present.size())))
                                 ->first;
      const auto what = random.below(10);
      if (any != 0 && what < 2) {
        places.leave(any);
        present.erase(any);
      } else if (any != 0 && what < 5) {
        places.greeted(any);
        present[any].second = true;
      } else {
        const std::string host = "h" + std::to_string(random.below(4));
        const auto arrival = places.arrive(from(host));
        ASSERT_EQ(arrival.displaced.has_value(), present.size() == most);
        if (arrival.displaced) {
          ASSERT_EQ(*arrival.displaced, victim_of(present));
          present.erase(*arrival.displaced);
        }
        present[arrival.id] = {host, false};
      }
      ASSERT_EQ(places.size(), present.size());
    }
  }
}

TEST(ByteBudget, IsGivenBackAndNeverExceededButByAMessageAlone) {
  const auto budget = std::make_shared<ByteBudget>(100);
  {
    HeldBytes first(budget), second(budget);
    EXPECT_TRUE(first.resize(60).ok());
    const Status refused = second.resize(41);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(refusal_of<NotReady>(refused.error()), nullptr) << "it is to come again";
    EXPECT_TRUE(second.resize(40).ok());
    EXPECT_TRUE(first.resize(10).ok());
    EXPECT_EQ(budget->used(), 50U);
    HeldBytes moved = std::move(first);
    EXPECT_EQ(budget->used(), 50U);
  }
  EXPECT_EQ(budget->used(), 0U);
  HeldBytes large(budget);
  EXPECT_TRUE(large.resize(1000).ok()) << "or nobody could ever send it";
  HeldBytes unlimited;
  EXPECT_TRUE(unlimited.resize(1u << 30).ok());
}

TEST(LineBudget, LinesAreRateLimitedAndCounted) {
  LineBudget lines;
  const TimePoint begin{std::chrono::hours(5)};
  std::size_t written = 0;
  for (int i = 0; i < 10'000; ++i)
    if (lines.take("token refused", begin + milliseconds(i / 10))) ++written;
  EXPECT_EQ(written, 20U) << "in a second";
  EXPECT_EQ(lines.take("token refused", begin + seconds(2)).value_or(""),
            "token refused (and 9,980 more, not logged)");
  EXPECT_EQ(lines.take("token refused", begin + seconds(60)).value_or(""), "token refused");
}

TEST(LineBudget, LinesAreShort) {
  LineBudget lines;
  const auto line = lines.take(std::string(4000, '\x1b'), TimePoint{});
  ASSERT_TRUE(line.has_value());
  EXPECT_LT(line->size(), 600U);
  EXPECT_NE(line->find("... (4000 bytes)"), std::string::npos);
}

TEST(LineBudget, NumbersAreGrouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(4211), "4,211");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

}  // namespace
}  // namespace centroid::transport
