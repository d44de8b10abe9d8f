#include "client/group_meeting.h"

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/group.h"
#include "client/group_rendezvous.h"
#include "tests/support/silent_crowd.h"

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using test::SilentCrowd;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::uint32_t> numbers_of(const Membership& all) {
  std::vector<std::uint32_t> numbers;
  for (const Member& one : all.members) numbers.push_back(one.number);
  return numbers;
}

/// The members of a job, each with its place.
class MeetingTest : public ::testing::Test {
 protected:
  void open(std::uint32_t world, std::chrono::milliseconds patience) {
    meetings_.clear();
    all_ = {};
    for (std::uint32_t number = 0; number < world; ++number) add(number, patience, "secret");
    begin();
  }
  static std::unique_ptr<Meeting> made(std::chrono::milliseconds patience, const std::string& token,
                                       const std::string& settings = "--lr=1\t--batch=8") {
    MeetingOptions options;
    options.token = token;
    options.patience = patience;
    options.settings = settings;
    auto opened = Meeting::open("127.0.0.1", options);
    EXPECT_TRUE(opened.ok()) << opened.error().to_string();
    return std::move(*opened);
  }
  void add(std::uint32_t number, std::chrono::milliseconds patience, const std::string& token) {
    meetings_[number] = made(patience, token);
    Member member;
    member.number = number;
    member.place = meetings_[number]->place();
    member.address = "address of " + std::to_string(number);
    all_.members.push_back(member);
  }
  void begin(std::uint64_t generation = 1) {
    all_.job = "job";
    all_.generation = generation;
    all_.next = static_cast<std::uint32_t>(all_.members.size());
    for (auto& [number, meeting] : meetings_) meeting->begin(all_);
  }
  using Results = std::map<std::uint32_t, Result<Membership>>;
  /// What each of these finds, all at the same time.
  Results meet(const std::vector<std::uint32_t>& numbers,
               Meeting::Newcomers newcomers = Meeting::Newcomers::kTake) {
    std::map<std::uint32_t, std::optional<Result<Membership>>> found;
    for (const std::uint32_t number : numbers) found[number];
    std::vector<std::jthread> threads;
    for (auto& [number, out] : found)
      threads.emplace_back([this, newcomers, number = number, &out = out] {
        out.emplace(meetings_[number]->meet(newcomers));
      });
    threads.clear();
    Results results;
    for (auto& [number, out] : found) results.emplace(number, std::move(*out));
    return results;
  }
  static void expect_all(const Results& results, const std::vector<std::uint32_t>& numbers,
                         std::uint64_t generation) {
    for (const auto& [number, found] : results) {
      ASSERT_TRUE(found.ok()) << number << ": " << found.error().to_string();
      EXPECT_THAT(numbers_of(*found), ElementsAreArray(numbers));
      EXPECT_EQ(found->generation, generation);
    }
  }

  Membership all_;
  std::map<std::uint32_t, std::unique_ptr<Meeting>> meetings_;
};

TEST_F(MeetingTest, ThoseThatAreLeftAgreeWhoeverIsLost) {
  constexpr std::uint32_t kWorld = 4;
  for (std::uint32_t lost = 1; lost + 1 < 1u << kWorld; ++lost) {
    SCOPED_TRACE("lost " + std::to_string(lost));
    open(kWorld, 60s);
    std::vector<std::uint32_t> left;
    for (std::uint32_t number = 0; number < kWorld; ++number) {
      if ((lost >> number & 1) == 0)
        left.push_back(number);
      else
        meetings_.erase(number);  // its system refuses connections
    }
    expect_all(meet(left), left, 2);
  }
}

TEST_F(MeetingTest, TheSamePlacesServeForTheNextLoss) {
  open(4, 60s);
  meetings_.erase(3);
  expect_all(meet({0, 1, 2}), {0, 1, 2}, 2);
  meetings_.erase(0);
  expect_all(meet({1, 2}), {1, 2}, 3);
}

TEST_F(MeetingTest, ASilentRankIsLeftOutByTheMajorityAndLearnsIt) {
  for (const std::uint32_t silent : {0u, 2u}) {
    open(3, 1s);
    std::vector<std::uint32_t> others;
    for (std::uint32_t number = 0; number < 3; ++number)
      if (number != silent) others.push_back(number);
    expect_all(meet(others), others, 2);
    const auto late = std::move(meet({silent}).at(silent));
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code(), silent == 0 ? ErrorCode::kUnavailable : ErrorCode::kAborted);
    EXPECT_THAT(late.error().message(), HasSubstr("silent"));
  }
}

TEST_F(MeetingTest, NoHalfGoesOnWithoutTheOtherThatMayLive) {
  open(4, 1s);
  for (const auto& [number, found] : meet({0, 1})) {
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.error().message(), HasSubstr("ranks 2, 3 are silent"));
  }
}

TEST_F(MeetingTest, OneThatIsNoMemberIsRefused) {
  open(3, 60s);
  Membership others = all_;
  others.generation = 2;
  others.members.pop_back();
  meetings_[0]->begin(others);
  meetings_[1]->begin(others);
  const auto stranger = meetings_[2]->meet();
  ASSERT_FALSE(stranger.ok());
  EXPECT_EQ(stranger.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(stranger.error().message(), HasSubstr("went on without rank 2"));
  expect_all(meet({0, 1}), {0, 1}, 3);
}

TEST_F(MeetingTest, AnotherTokenDoesNotCount) {
  add(0, 1s, "secret");
  add(1, 1s, "secret");
  add(2, 1s, "guess");
  begin();
  const auto found = meet({0, 1, 2});
  ASSERT_TRUE(found.at(0).ok()) << found.at(0).error().to_string();
  EXPECT_THAT(numbers_of(*found.at(0)), ElementsAre(0, 1));
  EXPECT_FALSE(found.at(2).ok());
}

/// One that waits at the leader, on a thread of its own.
class Waiting {
 public:
  Waiting(std::unique_ptr<Meeting> meeting, const transport::Endpoint& leader,
          std::chrono::milliseconds time = 60s)
      : meeting_(std::move(meeting)), thread_([this, leader, time] {
          answer_.emplace(meeting_->join(leader, "a new address", centroid::now() + time));
        }) {}
  Result<Membership> answer() {
    thread_.join();
    return std::move(*answer_);
  }
  std::unique_ptr<Meeting> take_meeting() { return std::move(meeting_); }

 private:
  std::unique_ptr<Meeting> meeting_;
  std::optional<Result<Membership>> answer_;
  std::jthread thread_;
};

class NewcomerTest : public MeetingTest {
 protected:
  void wait_for_newcomers(std::uint32_t leader, std::uint32_t count) {
    const TimePoint deadline = centroid::now() + 60s;
    while (meetings_[leader]->newcomers() != count && centroid::now() < deadline)
      std::this_thread::yield();
    ASSERT_EQ(meetings_[leader]->newcomers(), count);
  }
};

TEST_F(NewcomerTest, JoinsAtTheNextMeetingWithANumberOfItsOwn) {
  open(3, 60s);
  meetings_.erase(1);
  Waiting newcomer(made(60s, "secret"), meetings_[0]->place());
  wait_for_newcomers(0, 1);
  const auto members = meet({0, 2});
  expect_all(members, {0, 2, 3}, 2);
  const auto answer = newcomer.answer();
  ASSERT_TRUE(answer.ok()) << answer.error().to_string();
  EXPECT_THAT(numbers_of(*answer), ElementsAre(0, 2, 3));
  EXPECT_EQ(answer->job, "job");
  EXPECT_EQ(answer->members.back().address, "a new address");
  EXPECT_EQ(meetings_[0]->newcomers(), 0u);
  // It is a member like the others, and leads when they are lost.
  meetings_[3] = newcomer.take_meeting();
  for (auto& [number, meeting] : meetings_) meeting->complete();
  meetings_.erase(0);
  expect_all(meet({2, 3}), {2, 3}, 3);
  meetings_.erase(2);
  expect_all(meet({3}), {3}, 4);
  Waiting next(made(60s, "secret"), meetings_[3]->place());
  wait_for_newcomers(3, 1);
  expect_all(meet({3}), {3, 4}, 5);
}

// Members that did not learn of the newcomers may have gone on by themselves.
TEST_F(NewcomerTest, CountsInAMajorityOnceAGroupWithItIsComplete) {
  for (const bool is_complete : {false, true}) {
    SCOPED_TRACE(is_complete);
    open(3, 2s);
    Waiting third(made(2s, "secret"), meetings_[0]->place());
    wait_for_newcomers(0, 1);
    Waiting fourth(made(2s, "secret"), meetings_[0]->place());
    wait_for_newcomers(0, 2);
    expect_all(meet({0, 1, 2}), {0, 1, 2, 3, 4}, 2);
    EXPECT_TRUE(third.answer().ok() && fourth.answer().ok());
    meetings_[3] = third.take_meeting();
    meetings_[4] = fourth.take_meeting();
    if (is_complete)
      for (auto& [number, meeting] : meetings_) meeting->complete();
    const auto found = meet({0, 3, 4});  // 1 and 2 are silent
    EXPECT_EQ(found.at(0).ok(), is_complete);
    if (is_complete) {
      expect_all(found, {0, 3, 4}, 3);
      continue;
    }
    EXPECT_THAT(found.at(0).error().message(), HasSubstr("ranks 1, 2 are silent"));
    meetings_.erase(0);
    EXPECT_FALSE(meet({3, 4}).at(3).ok()) << "newcomers alone are no job";
  }
}

TEST_F(NewcomerTest, LeavesWhereNoGroupComesAboutWithIt) {
  open(2, 60s);
  Waiting newcomer(made(60s, "secret"), meetings_[0]->place());
  wait_for_newcomers(0, 1);
  expect_all(meet({0, 1}), {0, 1, 2}, 2);
  EXPECT_TRUE(newcomer.answer().ok());
  meetings_[2] = newcomer.take_meeting();
  expect_all(meet({0, 1, 2}, Meeting::Newcomers::kKeep), {0, 1, 2}, 3);
  const auto found = meet({0, 1, 2}, Meeting::Newcomers::kRefuse);
  EXPECT_THAT(numbers_of(*found.at(1)), ElementsAre(0, 1));
  ASSERT_FALSE(found.at(2).ok());
  EXPECT_EQ(found.at(2).error().code(), ErrorCode::kAborted);
}

TEST_F(NewcomerTest, IsRefusedWithTheSettingThatDiffers) {
  open(2, 60s);
  for (const auto& [settings, why] :
       {std::pair{"--lr=1\t--batch=16", "--batch is 16, and 8 in the job"},
        {"--lr=1", "--batch is , and 8 in the job"},
        {"--lr=1\t--batch=8\t--new=1", "another version"}}) {
    Waiting newcomer(made(60s, "secret", settings), meetings_[0]->place());
    const auto answer = newcomer.answer();
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(answer.error().message(), HasSubstr(why));
  }
  EXPECT_EQ(meetings_[0]->newcomers(), 0u);
}

TEST_F(NewcomerTest, IsSentElsewhereByOneThatDoesNotLead) {
  open(2, 60s);
  Waiting newcomer(made(60s, "secret"), meetings_[1]->place());
  const auto answer = newcomer.answer();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
}

TEST_F(NewcomerTest, WithAnotherTokenIsNoNewcomer) {
  open(2, 60s);
  Waiting newcomer(made(60s, "guess"), meetings_[0]->place());
  const auto answer = newcomer.answer();
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.error().message(), HasSubstr("token"));
  EXPECT_EQ(meetings_[0]->newcomers(), 0u);
}

TEST_F(NewcomerTest, WaitsNoLongerThanItsDeadlineAndIsForgotten) {
  open(2, 60s);
  Waiting newcomer(made(60s, "secret"), meetings_[0]->place(), 200ms);
  const auto answer = newcomer.answer();
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(answer.error().message(), HasSubstr("--join-timeout"));
  wait_for_newcomers(0, 0);
  expect_all(meet({0, 1}), {0, 1}, 2);
}

TEST_F(NewcomerTest, LearnsThatItHasNoPlaceOrThatTheJobHasEnded) {
  open(2, 60s);
  Waiting first(made(60s, "secret"), meetings_[0]->place());
  wait_for_newcomers(0, 1);
  meetings_[0]->refuse_newcomers("no memory");
  EXPECT_THAT(first.answer().error().message(), HasSubstr("no memory"));
  Waiting second(made(60s, "secret"), meetings_[0]->place());
  wait_for_newcomers(0, 1);
  meetings_[0]->end();
  const auto answer = second.answer();
  EXPECT_EQ(answer.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(answer.error().message(), HasSubstr("the job has ended"));
}

/// Where a process of this rank that comes to the rendezvous of a job that has begun is sent.
Result<Found> come(const transport::Endpoint& place, std::uint32_t rank,
                   bool may_be_newcomer = true, const std::string& token = "secret") {
  PeerOptions options;
  options.rank = rank;
  options.world = 3;
  options.token = token;
  options.may_be_newcomer = may_be_newcomer;
  return find_group(options, place, "127.0.0.1:1 nonce node");
}

/// A loopback port that is free now.
transport::Endpoint free_place() {
  IoThread io("free");
  const auto transport = transport::make_tcp(io.executor());
  auto listener = transport->listen({});
  EXPECT_TRUE(listener.ok());
  return (*listener)->endpoint();
}

constexpr int kCrowd = 300;  // more than there are places

TEST_F(NewcomerTest, SilentConnectionsKeepNobodyOut) {
  open(3, 60s);
  {
    SilentCrowd crowd(meetings_[0]->place(), kCrowd);
    crowd.wait_displaced(kCrowd);
    Waiting newcomer(made(60s, "secret"), meetings_[0]->place());
    wait_for_newcomers(0, 1);
    expect_all(meet({0, 1, 2}), {0, 1, 2, 3}, 2);
    EXPECT_TRUE(newcomer.answer().ok());
    meetings_[3] = newcomer.take_meeting();
  }
  meetings_.erase(0);  // 1 leads
  for (auto& [number, meeting] : meetings_) meeting->complete();
  SilentCrowd crowd(meetings_[2]->place(), kCrowd);
  crowd.wait_displaced(kCrowd);
  expect_all(meet({1, 2, 3}), {1, 2, 3}, 3);
}

class RendezvousTest : public ::testing::Test {
 protected:
  std::unique_ptr<Meeting> led(bool is_host) {
    MeetingOptions options;
    options.token = "secret";
    options.rendezvous = place_;
    options.is_host = is_host;
    auto opened = Meeting::open("127.0.0.1", options);
    EXPECT_TRUE(opened.ok());
    Membership all;
    all.job = "job";
    all.generation = all.next = 1;
    all.members.resize(1);
    all.members[0].place = (*opened)->place();
    all.members[0].address = "an address";
    (*opened)->begin(all);
    return std::move(*opened);
  }
  const transport::Endpoint place_ = free_place();
};

TEST_F(RendezvousTest, LeadsEveryRankToTheLeaderOfTheJobThatHasBegun) {
  const auto job = led(true);
  for (const std::uint32_t rank : {1u, 0u, 2u}) {  // rank 0 may listen before the job does
    const auto found = come(place_, rank);
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_TRUE(found->addresses.empty());
    EXPECT_EQ(found->leader, job->place());
  }
  const auto other = come(place_, 1, false);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("has begun"));
  const auto stranger = come(place_, 1, true, "guess");
  ASSERT_FALSE(stranger.ok());
  EXPECT_THAT(stranger.error().message(), HasSubstr("token"));
}

TEST_F(RendezvousTest, OfARankZeroThatWaitsForOthersIsCalledByTheLeader) {
  std::optional<Result<Found>> found;
  std::jthread first([&] { found.emplace(come(place_, 0)); });
  IoThread io("caller");
  const auto transport = transport::make_tcp(io.executor());
  const TimePoint deadline = centroid::now() + 60s;
  while (!io.wait(transport->connect(place_, deadline)).ok() && centroid::now() < deadline)
    std::this_thread::yield();  // until it listens
  const auto job = led(false);
  first.join();
  ASSERT_TRUE(found->ok()) << found->error().to_string();
  EXPECT_EQ((*found)->leader, job->place());
}

TEST_F(RendezvousTest, SilentConnectionsKeepNobodyOut) {
  const auto job = led(true);
  ASSERT_TRUE(come(place_, 1).ok());  // it listens
  SilentCrowd crowd(place_, kCrowd);
  crowd.wait_displaced(kCrowd);
  for (const std::uint32_t rank : {1u, 0u}) {
    const auto found = come(place_, rank);
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(found->leader, job->place());
  }
}

TEST_F(RendezvousTest, RanksThatBeginAreNotKeptOutBySilentConnections) {
  std::vector<std::optional<Result<Found>>> found(3);
  std::vector<std::jthread> ranks;
  const auto begin = [&](std::uint32_t rank) {
    ranks.emplace_back([&, rank] { found[rank].emplace(come(place_, rank)); });
  };
  begin(0);
  SilentCrowd crowd(place_, kCrowd);
  crowd.wait_displaced(kCrowd);
  for (const std::uint32_t rank : {1u, 2u}) begin(rank);
  ranks.clear();
  for (const auto& one : found) {
    ASSERT_TRUE(one->ok()) << one->error().to_string();
    EXPECT_EQ((*one)->addresses.size(), 3u);
  }
}

TEST_F(RendezvousTest, IsTakenOverByAnotherMember) {
  auto first = led(true);
  ASSERT_TRUE(come(place_, 1).ok());
  const auto second = led(false);
  first.reset();
  const auto found = come(place_, 1);
  ASSERT_TRUE(found.ok()) << found.error().to_string();
  EXPECT_EQ(found->leader, second->place());
}

TEST_F(RendezvousTest, WhereAnotherProgramListensIsRefusedToRankZero) {
  IoThread io("other");
  const auto transport = transport::make_tcp(io.executor());
  const auto listener = transport->listen(place_);
  ASSERT_TRUE(listener.ok());
  const auto found = come(place_, 0);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::kAlreadyExists);
}

TEST(PeerGroupTest, DoesNotWaitForARankThatIsGone) {
  std::vector<std::unique_ptr<PeerGroup>> groups;
  std::vector<std::string> addresses;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    PeerOptions options;
    options.rank = rank;
    options.world = 3;
    options.timeout = 10min;  // longer than this test may take
    auto opened = PeerGroup::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    addresses.push_back((*opened)->address());
    groups.push_back(std::move(*opened));
  }
  groups[1].reset();
  std::vector<Status> results(3);
  std::vector<std::jthread> threads;
  for (const std::uint32_t rank : {0u, 2u})
    threads.emplace_back([&, rank] { results[rank] = groups[rank]->connect(addresses); });
  threads.clear();
  for (const std::uint32_t rank : {0u, 2u}) {
    ASSERT_FALSE(results[rank].ok());
    EXPECT_THAT(results[rank].error().message(), HasSubstr("rank 1 is gone"));
  }
}

}  // namespace
}  // namespace centroid::client
