// When handshakes may begin. No sockets: time comes with the calls.
#include "transport/handshake_turns.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace centroid::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kTls = 1e-3;

/// Begin and end whatever may begin until `limit`; how many of each address.
std::map<std::string, int> run(HandshakeTurns& turns, std::map<std::uint64_t, std::string>& asked,
                               TimePoint& now, TimePoint limit) {
  std::map<std::string, int> begun;
  while (now < limit) {
    while (const auto id = turns.next(now)) {
      ++begun[asked.at(*id)];
      turns.end(*id, kTls);
    }
    if (!turns.first()) break;
    now = turns.next_at(now);
  }
  return begun;
}

TEST(HandshakeTurns, NobodyWaitsWithinTheBurst) {
  HandshakeTurns turns;
  const TimePoint now;
  for (std::uint64_t id = 0; id < 225; ++id) {
    turns.ask(id, "10.0.0.1:1");
    ASSERT_EQ(turns.next(now), id);
    turns.end(id, kTls);
  }
  EXPECT_NEAR(turns.used(now), 0.225, 0.025);
  EXPECT_EQ(turns.used(now + seconds(3)), 0) << "it comes back";
}

TEST(HandshakeTurns, AllTogetherTakeAShareOfTheProcessor) {
  HandshakeTurns turns;
  std::map<std::uint64_t, std::string> asked;
  TimePoint now;
  for (std::uint64_t id = 0; id < 20'000; ++id) turns.ask(id, asked[id] = "10.0.0.1:1");
  const int first = run(turns, asked, now, now + milliseconds(1))["10.0.0.1:1"];
  EXPECT_NEAR(first, HandshakeTurns::kBurst / kTls, 25);
  const TimePoint limit = now + seconds(10);
  const int later = run(turns, asked, now, limit)["10.0.0.1:1"];
  EXPECT_NEAR(later, 10 * HandshakeTurns::kShare / kTls, 100);
}

TEST(HandshakeTurns, ATurnPaysWhatHandshakesCostLately) {
  HandshakeTurns turns;
  TimePoint now;
  std::uint64_t id = 0;
  for (; id < 200; ++id) {
    turns.ask(id, "10.0.0.1:1");
    ASSERT_EQ(turns.next(now), id);
    turns.end(id, kTls);
  }
  now += seconds(20);  // the burst is back
  for (; id < 5000; ++id) turns.ask(id, "10.0.0.1:1");
  int begun = 0;
  while (turns.next(now)) ++begun;
  EXPECT_NEAR(begun, HandshakeTurns::kBurst / kTls, 25) << "before any of them has ended";
}

TEST(HandshakeTurns, AProcessorWithNothingElseToDoIsLent) {
  HandshakeTurns turns;
  const TimePoint now;
  std::map<std::string, int> begun;
  for (std::uint64_t id = 0; id < 5000; ++id)
    turns.ask(id, id < 4000 ? "10.0.0.1:1" : "10.0.0.2:1");
  for (int i = 0; i < 2000; ++i) {
    const auto id = turns.next(now, true);
    ASSERT_TRUE(id.has_value()) << i;
    ++begun[*id < 4000 ? "first" : "second"];
    turns.end(*id, kTls);
  }
  EXPECT_EQ(begun["first"], begun["second"]);
  EXPECT_EQ(turns.used(now), 0) << "the burst is still there";
  int more = 0;
  for (; const auto id = turns.next(now); ++more) turns.end(*id, kTls);
  EXPECT_NEAR(more, HandshakeTurns::kBurst / kTls, 25) << "behind it the share";
}

TEST(HandshakeTurns, ThoseThatStallTakeWhatIsLentAndNotTheShare) {
  HandshakeTurns turns;
  TimePoint now;
  std::uint64_t id = 0;
  for (; id < 30'000; ++id) turns.ask(id, "10.0.0.1:1");
  while (const auto stalls = turns.next(now, true)) id = *stalls;
  EXPECT_GT(id, HandshakeTurns::kMostLent);  // and the burst
  now += seconds(1);
  ASSERT_TRUE(turns.next(now, true).has_value()) << "the share";
  while (turns.next(now, true)) continue;
  turns.end(0, 0);
  EXPECT_TRUE(turns.next(now, true).has_value()) << "in place of one that has ended";
  EXPECT_FALSE(turns.next(now, true).has_value());
}

TEST(HandshakeTurns, AddressesTakeTurns) {
  HandshakeTurns turns;
  std::map<std::uint64_t, std::string> asked;
  TimePoint now;
  std::uint64_t id = 0;
  for (; id < 5000; ++id) turns.ask(id, asked[id] = "10.0.0.1:1");
  (void)run(turns, asked, now, now + seconds(1));
  for (int i = 0; i < 5; ++i, ++id) turns.ask(id, asked[id] = "10.0.0.2:1");
  const TimePoint limit = now + milliseconds(200);
  auto begun = run(turns, asked, now, limit);
  EXPECT_EQ(begun["10.0.0.2:1"], 5) << "behind one of the other's each";
  EXPECT_GT(begun["10.0.0.1:1"], 5);
}

TEST(HandshakeTurns, OneThatIsGoneHasNoTurn) {
  HandshakeTurns turns;
  const TimePoint now;
  for (std::uint64_t id = 1; id <= 3; ++id) turns.ask(id, "10.0.0." + std::to_string(id) + ":1");
  turns.end(1, 0);
  EXPECT_EQ(turns.first(), 2U);
  EXPECT_EQ(turns.next(now), 2U);
  turns.end(3, 0);
  EXPECT_FALSE(turns.next(now).has_value());
  EXPECT_FALSE(turns.first().has_value());
  turns.end(3, 0);  // again: as if never
}

}  // namespace
}  // namespace centroid::transport
