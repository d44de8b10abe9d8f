#include "client/group_meeting.h"

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The ranks of a job, each with its place.
class MeetingTest : public ::testing::Test {
 protected:
  void open(std::uint32_t world, std::chrono::milliseconds patience) {
    for (std::uint32_t rank = 0; rank < world; ++rank) add(rank, patience, "secret");
  }
  void add(std::uint32_t rank, std::chrono::milliseconds patience, const std::string& token) {
    MeetingOptions options;
    options.rank = rank;
    options.job = "job";
    options.token = token;
    options.patience = patience;
    auto opened = Meeting::open("127.0.0.1", options);
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    places_[rank] = (*opened)->place();
    meetings_[rank] = std::move(*opened);
  }
  /// What each of these finds, all at the same time.
  std::map<std::uint32_t, Result<Survivors>> meet(const std::vector<std::uint32_t>& ranks,
                                                  std::uint64_t generation = 1) {
    std::map<std::uint32_t, std::optional<Result<Survivors>>> found;
    for (const std::uint32_t rank : ranks) found[rank];
    std::vector<std::jthread> threads;
    for (auto& [rank, out] : found)
      threads.emplace_back([this, rank = rank, &out = out, generation] {
        out.emplace(meetings_[rank]->meet(places_, generation));
      });
    threads.clear();
    std::map<std::uint32_t, Result<Survivors>> results;
    for (auto& [rank, out] : found) results.emplace(rank, std::move(*out));
    return results;
  }

  std::map<std::uint32_t, transport::Endpoint> places_;
  std::map<std::uint32_t, std::unique_ptr<Meeting>> meetings_;
};

TEST_F(MeetingTest, ThoseThatAreLeftAgreeWhoeverIsLost) {
  constexpr std::uint32_t kWorld = 4;
  for (std::uint32_t lost = 1; lost + 1 < 1u << kWorld; ++lost) {
    SCOPED_TRACE("lost " + std::to_string(lost));
    open(kWorld, 60s);
    std::vector<std::uint32_t> left;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if ((lost >> rank & 1) == 0)
        left.push_back(rank);
      else
        meetings_.erase(rank);  // its system refuses connections
    }
    for (const auto& [rank, found] : meet(left, 7)) {
      ASSERT_TRUE(found.ok()) << found.error().to_string();
      EXPECT_EQ(found->ranks, left);
      EXPECT_EQ(found->generation, 8u);
    }
  }
}

TEST_F(MeetingTest, TheSamePlacesServeForTheNextLoss) {
  open(4, 60s);
  meetings_.erase(3);
  for (const auto& [rank, found] : meet({0, 1, 2})) ASSERT_TRUE(found.ok());
  places_.erase(3);
  meetings_.erase(0);
  for (const auto& [rank, found] : meet({1, 2}, 2)) {
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_THAT(found->ranks, ElementsAre(1, 2));
    EXPECT_EQ(found->generation, 3u);
  }
}

TEST_F(MeetingTest, ASilentRankIsLeftOutByTheMajorityAndLearnsIt) {
  for (const std::uint32_t silent : {0u, 2u}) {
    open(3, 1s);
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      if (rank != silent) others.push_back(rank);
    for (const auto& [rank, found] : meet(others)) {
      ASSERT_TRUE(found.ok()) << found.error().to_string();
      EXPECT_EQ(found->ranks, others);
    }
    const auto late = meet({silent}).at(silent);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(late.error().message(), HasSubstr("silent"));
  }
}

TEST_F(MeetingTest, NoHalfGoesOnWithoutTheOtherThatMayLive) {
  open(4, 1s);
  for (const auto& [rank, found] : meet({0, 1})) {
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.error().message(), HasSubstr("ranks 2, 3 are silent"));
  }
}

TEST_F(MeetingTest, OneThatIsNoMemberIsRefused) {
  open(3, 60s);
  const auto all = places_;
  places_.erase(2);
  Result<Survivors> stranger = Error(ErrorCode::kInternal, "not asked");
  std::jthread thread([&] { stranger = meetings_[2]->meet(all, 1); });
  // Rank 0 waits for rank 1, which comes when rank 2 has its answer.
  Result<Survivors> first = Error(ErrorCode::kInternal, "not asked");
  std::jthread leader([&] { first = meetings_[0]->meet(places_, 2); });
  thread.join();
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(stranger.error().message(), HasSubstr("went on without rank 2"));
  EXPECT_TRUE(meetings_[1]->meet(places_, 2).ok());
  leader.join();
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_THAT(first->ranks, ElementsAre(0, 1));
}

TEST_F(MeetingTest, AnotherTokenDoesNotCount) {
  add(0, 1s, "secret");
  add(1, 1s, "secret");
  add(2, 1s, "guess");
  const auto found = meet({0, 1, 2});
  ASSERT_TRUE(found.at(0).ok()) << found.at(0).error().to_string();
  EXPECT_THAT(found.at(0)->ranks, ElementsAre(0, 1));
  EXPECT_FALSE(found.at(2).ok());
}

}  // namespace
}  // namespace centroid::client
