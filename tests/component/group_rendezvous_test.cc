#include "client/group_rendezvous.h"

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/group.h"
#include "client/group_meeting.h"

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

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
