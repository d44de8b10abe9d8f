#include "transport/server_list.h"

#include <gtest/gtest.h>

#include "common/proto/standby.h"

namespace centroid::transport {
namespace {

const Endpoint kA{"a", 1}, kB{"b", 2}, kC{"c", 3};
const Error kGone(ErrorCode::kUnavailable, "connection refused");

Error names(const Endpoint& leader) {
  return proto::standby_error("x", leader.to_string()).with_context("a peer says");
}

/// As its callers do.
bool failed(ServerList& list, const Error& why) {
  return list.failed(why, proto::leader_named_by(why));
}

TEST(ServerList, OneServerIsTriedAgainAfterAPause) {
  ServerList list({kA});
  EXPECT_EQ(list.present(), kA);
  EXPECT_FALSE(failed(list, kGone));
  EXPECT_EQ(list.present(), kA);
  EXPECT_FALSE(list.is_several());
}

TEST(ServerList, AllAreTriedInTurnBeforeAPause) {
  ServerList list({kA, kB, kC});
  EXPECT_TRUE(failed(list, kGone));
  EXPECT_EQ(list.present(), kB);
  EXPECT_TRUE(failed(list, kGone));
  EXPECT_EQ(list.present(), kC);
  EXPECT_FALSE(failed(list, kGone));
  EXPECT_EQ(list.present(), kA);
}

TEST(ServerList, TheLeaderThatAStandbyNamesIsNext) {
  ServerList list({kA});
  EXPECT_TRUE(failed(list, names(kC)));  // not of the list
  EXPECT_EQ(list.present(), kC);
  EXPECT_TRUE(list.is_several());
  list.joined();
  EXPECT_EQ(list.present(), kC);
}

TEST(ServerList, ADeadLeaderThatStandbysNameDoesNotMakeAnEndlessChase) {
  ServerList list({kA, kB});
  int calls = 1;
  // a is dead, b names it: each round of calls ends.
  for (; calls < 10; ++calls) {
    const bool goes_on = failed(list, list.present() == kA ? kGone : names(kA));
    if (!goes_on) break;
  }
  EXPECT_LT(calls, 5);
  // Until b leads itself.
  while (list.present() != kB) failed(list, kGone);
  list.joined();
  EXPECT_EQ(list.present(), kB);
}

TEST(ServerList, AServerThatDoesNotAnswerIsPassedOverForAWhile) {
  ServerList list({kA, kB});
  const Error silent(ErrorCode::kDeadlineExceeded, "no answer");
  EXPECT_TRUE(failed(list, silent));
  int calls_of_b = 0;
  while (list.present() == kB && calls_of_b < 100) {
    ++calls_of_b;
    failed(list, names(kA));  // b has not noticed yet
  }
  EXPECT_GT(calls_of_b, 5);
  EXPECT_LT(calls_of_b, 20);
  EXPECT_EQ(list.present(), kA);  // it may only have been slow
}

TEST(ServerList, AStandbyThatNamesItselfIsNotCalledAtOnce) {
  ServerList list({kA});
  EXPECT_FALSE(failed(list, names(kA)));
}

TEST(StandbyError, NamesTheLeaderForWhoeverIsRefused) {
  EXPECT_EQ(proto::leader_named_by(proto::standby_error("my leader", "10.0.0.2:7070")),
            "10.0.0.2:7070");
  EXPECT_EQ(proto::leader_named_by(names({"::1", 7})), "[::1]:7");
  EXPECT_EQ(proto::leader_named_by(proto::standby_error("", "")), std::nullopt);
  EXPECT_EQ(proto::leader_named_by(kGone), std::nullopt);
  EXPECT_EQ(proto::leader_named_by(Error(ErrorCode::kAborted, "standby, leader is b at c:1")),
            std::nullopt);
}

}  // namespace
}  // namespace centroid::transport
