#include "transport/server_list.h"

#include <gtest/gtest.h>

#include "common/base/refusal.h"

namespace centroid::transport {
namespace {

const Endpoint kA{"a", 1}, kB{"b", 2}, kC{"c", 3};
const Error kGone(ErrorCode::kUnavailable, "connection refused");

Error names(const Endpoint& leader) {
  return not_leader("x", leader.to_string()).with_context("a peer says");
}

TEST(ServerList, OneServerIsTriedAgainAfterAPause) {
  ServerList list({kA});
  EXPECT_EQ(list.present(), kA);
  EXPECT_FALSE(list.failed(kGone));
  EXPECT_EQ(list.present(), kA);
  EXPECT_FALSE(list.is_several());
}

TEST(ServerList, AllAreTriedInTurnBeforeAPause) {
  ServerList list({kA, kB, kC});
  EXPECT_TRUE(list.failed(kGone));
  EXPECT_EQ(list.present(), kB);
  EXPECT_TRUE(list.failed(kGone));
  EXPECT_EQ(list.present(), kC);
  EXPECT_FALSE(list.failed(kGone));
  EXPECT_EQ(list.present(), kA);
}

TEST(ServerList, TheLeaderThatAStandbyNamesIsNext) {
  ServerList list({kA});
  EXPECT_TRUE(list.failed(names(kC)));  // not of the list
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
    const bool goes_on = list.failed(list.present() == kA ? kGone : names(kA));
    if (!goes_on) break;
  }
  EXPECT_LT(calls, 5);
  // Until b leads itself.
  while (list.present() != kB) list.failed(kGone);
  list.joined();
  EXPECT_EQ(list.present(), kB);
}

TEST(ServerList, AServerThatDoesNotAnswerIsPassedOverForAWhile) {
  ServerList list({kA, kB});
  const Error silent(ErrorCode::kDeadlineExceeded, "no answer");
  EXPECT_TRUE(list.failed(silent));
  int calls_of_b = 0;
  while (list.present() == kB && calls_of_b < 100) {
    ++calls_of_b;
    list.failed(names(kA));  // b has not noticed yet
  }
  EXPECT_GT(calls_of_b, 5);
  EXPECT_LT(calls_of_b, 20);
  EXPECT_EQ(list.present(), kA);  // it may only have been slow
}

TEST(ServerList, AStandbyThatNamesItselfIsNotCalledAtOnce) {
  ServerList list({kA});
  EXPECT_FALSE(list.failed(names(kA)));
}

TEST(ServerList, ATextIsNoRefusal) {
  ServerList list({kA});
  EXPECT_FALSE(list.failed(Error(ErrorCode::kUnavailable, names(kC).message())));
  EXPECT_FALSE(list.failed(not_leader("", "")));
  EXPECT_EQ(list.present(), kA);
}

}  // namespace
}  // namespace centroid::transport
