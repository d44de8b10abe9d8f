#include "client/group_rendezvous.h"

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/group.h"
#include "client/group_meeting.h"
#include "tests/support/certificates.h"
#include "tests/support/silent_crowd.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using test::SilentCrowd;
using ::testing::HasSubstr;

constexpr int kCrowd = 300;  // more than there are places

/// Where a process of this rank that comes to the rendezvous of a job that has begun is sent.
Result<Found> come(const transport::Endpoint& place, std::uint32_t rank,
                   bool may_be_newcomer = true, const std::string& token = "secret",
                   std::shared_ptr<transport::StreamLayer> layer = nullptr) {
  PeerOptions options;
  options.layer = std::move(layer);
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

TEST_F(RendezvousTest, SilentConnectionsAtAMeetingKeepNoNewcomerOut) {
  const auto job = led(false);
  SilentCrowd crowd(job->place(), kCrowd);
  crowd.wait_displaced(kCrowd);
  MeetingOptions options;
  options.token = "secret";
  const auto newcomer = Meeting::open("127.0.0.1", options);
  ASSERT_TRUE(newcomer.ok());
  const TimePoint deadline = centroid::now() + 60s;
  std::jthread joins([&] { (void)(*newcomer)->join(job->place(), "a new address", deadline); });
  while (job->newcomers() == 0 && centroid::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(job->newcomers(), 1u);
  job->refuse_newcomers("enough");
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
  EXPECT_THAT(found.error().message(), HasSubstr("what listens there: "));
}

TEST_F(RendezvousTest, RankZeroSaysWhyTheJobThatListensThereRefusesIt) {
  const auto job = led(true);
  ASSERT_TRUE(come(place_, 1).ok());  // it listens
  const auto found = come(place_, 0, true, "guess");
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message(), HasSubstr("the token is refused"));
}

/// As of a rank, to which others connect too.
std::shared_ptr<transport::StreamLayer> layer_of(transport::TlsOptions files,
                                                 const test::Authority& trusted) {
  files.authority = trusted.file();
  files.is_server = files.any_name = true;
  auto made = transport::make_tls(std::move(files));
  EXPECT_TRUE(made.ok()) << made.error().to_string();
  return std::move(*made);
}

class RendezvousTlsTest : public RendezvousTest {
 protected:
  void expect_refused(std::shared_ptr<transport::StreamLayer> layer, const std::string& why) {
    const auto found = come(place_, 1, true, "secret", std::move(layer));
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(found.error().message(), AllOf(HasSubstr("no TLS with rank 0"), HasSubstr(why)));
  }
  TemporaryDirectory folder_;
  test::Authority authority_{folder_.path()}, other_{folder_.path(), "other"};
};

TEST_F(RendezvousTlsTest, OnlyRanksOfTheSameAuthorityMeet) {
  const auto own = layer_of(authority_.issue("rank"), authority_);
  std::vector<std::optional<Result<Found>>> found(3);
  std::vector<std::jthread> ranks;
  const auto begin = [&](std::uint32_t rank) {
    ranks.emplace_back([&, rank] { found[rank].emplace(come(place_, rank, true, "secret", own)); });
  };
  begin(0);
  const auto foreign = other_.issue("foreign");
  expect_refused(nullptr, "TLS, which this side does not speak: set it on both sides");
  expect_refused(layer_of(foreign, authority_),
                 "tls.authority of the other side did not sign tls.certificate of this one");
  expect_refused(layer_of(foreign, other_), "tls.authority of this side did not sign it");
  for (const std::uint32_t rank : {1u, 2u}) begin(rank);
  ranks.clear();
  for (const auto& one : found) {
    ASSERT_TRUE(one->ok()) << one->error().to_string();
    EXPECT_EQ((*one)->addresses.size(), 3u);
  }
}

TEST_F(RendezvousTlsTest, ARankWithTlsIsRefusedByOneWithout) {
  const auto job = led(true);
  ASSERT_TRUE(come(place_, 1).ok());  // it listens
  expect_refused(layer_of(authority_.issue("rank"), authority_),
                 "the other side does not speak TLS: set it on both sides");
}

/// A peer that accepts connections and sends nothing holds nobody beyond the deadline of the step,
/// which is far below that of a frame that stalls.
TEST_F(RendezvousTlsTest, AHandshakeEndsWithItsStep) {
  IoThread io("silent");
  const auto transport = transport::make_tcp(io.executor());
  const auto listener = transport->listen(place_);
  ASSERT_TRUE(listener.ok());
  PeerOptions options;
  options.rank = 1;
  options.world = 2;
  options.layer = layer_of(authority_.issue("rank"), authority_);
  options.timeout = 200ms;
  const auto found = find_group(options, place_, "127.0.0.1:1 nonce node");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(found.error().message(), HasSubstr(place_.to_string() + " sent nothing"));

  MeetingOptions meeting;
  meeting.layer = options.layer;
  meeting.patience = 200ms;
  const auto opened = Meeting::open("127.0.0.1", meeting);
  ASSERT_TRUE(opened.ok());
  const auto joined = (*opened)->join(place_, "an address", centroid::now() + 200ms);
  ASSERT_FALSE(joined.ok());
  EXPECT_EQ(joined.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(joined.error().message(), HasSubstr(place_.to_string()));

  Membership all;
  all.job = "job";
  all.generation = 1;
  all.next = 2;
  all.members.resize(2);
  all.members[0].place = place_;
  all.members[1].number = 1;
  all.members[1].place = (*opened)->place();
  (*opened)->begin(all);
  const auto met = (*opened)->meet();
  ASSERT_FALSE(met.ok());
  EXPECT_THAT(met.error().message(), HasSubstr("ranks 0 are silent"));
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
