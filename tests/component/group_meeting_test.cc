// Meetings in virtual time: the patience with a silent member costs none.

#include "client/group_meeting.h"

#include <optional>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/thread.h"
#include "tests/simulation/network.h"

namespace centroid::client {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::uint32_t> numbers_of(const Membership& all) {
  std::vector<std::uint32_t> numbers;
  for (const Member& one : all.members) numbers.push_back(one.number);
  return numbers;
}

/// A network in which the name of rank 0's machine is found slowly, for one caller after another.
/// Who asked before it `moved` finds the old machine, which is gone and answers nobody.
class SlowName final : public transport::Transport {
 public:
  static constexpr std::string_view kName = "trainer-0", kGone = "gone";
  static constexpr auto kTime = 3s;

  SlowName(std::unique_ptr<transport::Transport> network, const TimePoint& moved)
      : network_(std::move(network)), moved_(moved) {}
  Task<Result<std::vector<transport::Endpoint>>> resolve(transport::Endpoint place) override {
    if (place.host == kName) {
      const TimePoint asked = std::max(centroid::now(), free_);
      free_ = asked + kTime;
      const bool goes_on = co_await sleep_until(free_);
      if (!goes_on) co_return Error(ErrorCode::kCancelled, "cancelled");
      place.host = asked < moved_ ? kGone : "0.0.0.0";  // where it listens
    }
    std::vector<transport::Endpoint> found;
    found.push_back(place);
    co_return found;
  }
  Task<Result<std::unique_ptr<transport::Connection>>> connect(transport::Endpoint place,
                                                               Deadline deadline) override {
    const bool has_turn = std::max(centroid::now(), free_) < deadline;
    if (has_turn) {
      CENTROID_CO_ASSIGN(const auto found, co_await resolve(place));
      place = found.front();
    }
    if (!has_turn || place.host == kGone) (void)co_await sleep_until(deadline);
    if (centroid::now() >= deadline)
      co_return Error(ErrorCode::kDeadlineExceeded, "no answer before the deadline");
    co_return co_await network_->connect(place, deadline);
  }
  Result<std::unique_ptr<transport::Listener>> listen(const transport::Endpoint& place) override {
    return network_->listen(place);
  }

 private:
  const std::unique_ptr<transport::Transport> network_;
  const TimePoint& moved_;
  TimePoint free_;  ///< until then it asks for another one
};

/// The members of a job, each with its place.
class MeetingTest : public ::testing::Test {
 protected:
  /// The test, as a thread of the simulated machine.
  void play(const std::function<void()>& body) {
    world_.run([&] {
      body();
      meetings_.clear();
    });
  }
  void open(std::uint32_t world) {
    meetings_.clear();
    all_ = {};
    for (std::uint32_t number = 0; number < world; ++number) add(number, "secret");
    begin();
  }
  std::unique_ptr<Meeting> made(const std::string& token,
                                const std::string& settings = "--lr=1\t--batch=8") {
    MeetingOptions options;
    options.token = token;
    options.settings = settings;
    options.rendezvous = rendezvous_;
    options.is_host = meetings_.empty();
    options.make_transport = transports();
    auto opened = Meeting::open("127.0.0.1", options);
    EXPECT_TRUE(opened.ok()) << opened.error().to_string();
    return std::move(*opened);
  }
  void add(std::uint32_t number, const std::string& token) {
    meetings_[number] = made(token);
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
    std::vector<Thread> threads;
    for (auto& [number, out] : found)
      threads.emplace_back("member", [this, newcomers, number = number, &out = out] {
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

  transport::Factory transports() {
    return [this](Executor executor, transport::TransportOptions how) {
      auto made = network_.make_transport(std::move(executor), std::move(how));
      if (has_slow_name_) made = std::make_unique<SlowName>(std::move(made), moved_);
      return made;
    };
  }

  bool has_slow_name_ = false;
  TimePoint moved_;
  std::optional<transport::Endpoint> rendezvous_;  ///< of meetings that are made from now on
  simulation::World world_{7};
  simulation::Network network_{world_};
  Membership all_;
  std::map<std::uint32_t, std::unique_ptr<Meeting>> meetings_;
};

TEST_F(MeetingTest, ThoseThatAreLeftAgreeWhoeverIsLost) {
  play([&] {
    constexpr std::uint32_t kWorld = 4;
    for (std::uint32_t lost = 1; lost + 1 < 1u << kWorld; ++lost) {
      SCOPED_TRACE("lost " + std::to_string(lost));
      open(kWorld);
      std::vector<std::uint32_t> left;
      for (std::uint32_t number = 0; number < kWorld; ++number) {
        if ((lost >> number & 1) == 0)
          left.push_back(number);
        else
          meetings_.erase(number);  // its system refuses connections
      }
      expect_all(meet(left), left, 2);
    }
  });
}

TEST_F(MeetingTest, TheSamePlacesServeForTheNextLoss) {
  play([&] {
    open(4);
    meetings_.erase(3);
    expect_all(meet({0, 1, 2}), {0, 1, 2}, 2);
    meetings_.erase(0);
    expect_all(meet({1, 2}), {1, 2}, 3);
  });
}

TEST_F(MeetingTest, ASilentRankIsLeftOutByTheMajorityAndLearnsIt) {
  play([&] {
    for (const std::uint32_t silent : {0u, 2u}) {
      open(3);
      std::vector<std::uint32_t> others;
      for (std::uint32_t number = 0; number < 3; ++number)
        if (number != silent) others.push_back(number);
      expect_all(meet(others), others, 2);
      const auto late = std::move(meet({silent}).at(silent));
      ASSERT_FALSE(late.ok());
      EXPECT_EQ(late.error().code(), silent == 0 ? ErrorCode::kUnavailable : ErrorCode::kAborted);
      EXPECT_THAT(late.error().message(), HasSubstr("silent"));
    }
  });
}

TEST_F(MeetingTest, NoHalfGoesOnWithoutTheOtherThatMayLive) {
  play([&] {
    open(4);
    for (const auto& [number, found] : meet({0, 1})) {
      ASSERT_FALSE(found.ok());
      EXPECT_THAT(found.error().message(), HasSubstr("ranks 2, 3 are silent"));
    }
  });
}

TEST_F(MeetingTest, OneThatIsNoMemberIsRefused) {
  play([&] {
    open(3);
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
  });
}

TEST_F(MeetingTest, AnotherTokenDoesNotCount) {
  play([&] {
    add(0, "secret");
    add(1, "secret");
    add(2, "guess");
    begin();
    const auto found = meet({0, 1, 2});
    ASSERT_TRUE(found.at(0).ok()) << found.at(0).error().to_string();
    EXPECT_THAT(numbers_of(*found.at(0)), ElementsAre(0, 1));
    EXPECT_FALSE(found.at(2).ok());
  });
}

/// One that waits at the leader, on a thread of its own.
class Waiting {
 public:
  Waiting(std::unique_ptr<Meeting> meeting, const transport::Endpoint& leader,
          std::chrono::milliseconds time = 60s)
      : meeting_(std::move(meeting)), thread_("newcomer", [this, leader, time] {
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
  Thread thread_;
};

class NewcomerTest : public MeetingTest {
 protected:
  void wait_for_newcomers(std::uint32_t leader, std::uint32_t count) {
    const TimePoint deadline = centroid::now() + 60s;
    while (meetings_[leader]->newcomers() != count && centroid::now() < deadline)
      world_.let_pass(1ms);
    ASSERT_EQ(meetings_[leader]->newcomers(), count);
  }
};

TEST_F(NewcomerTest, JoinsAtTheNextMeetingWithANumberOfItsOwn) {
  play([&] {
    open(3);
    meetings_.erase(1);
    Waiting newcomer(made("secret"), meetings_[0]->place());
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
    Waiting next(made("secret"), meetings_[3]->place());
    wait_for_newcomers(3, 1);
    expect_all(meet({3}), {3, 4}, 5);
  });
}

// Members that did not learn of the newcomers may have gone on by themselves.
TEST_F(NewcomerTest, CountsInAMajorityOnceAGroupWithItIsComplete) {
  play([&] {
    for (const bool is_complete : {false, true}) {
      SCOPED_TRACE(is_complete);
      open(3);
      Waiting third(made("secret"), meetings_[0]->place());
      wait_for_newcomers(0, 1);
      Waiting fourth(made("secret"), meetings_[0]->place());
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
  });
}

TEST_F(NewcomerTest, LeavesWhereNoGroupComesAboutWithIt) {
  play([&] {
    open(2);
    Waiting newcomer(made("secret"), meetings_[0]->place());
    wait_for_newcomers(0, 1);
    expect_all(meet({0, 1}), {0, 1, 2}, 2);
    EXPECT_TRUE(newcomer.answer().ok());
    meetings_[2] = newcomer.take_meeting();
    expect_all(meet({0, 1, 2}, Meeting::Newcomers::kKeep), {0, 1, 2}, 3);
    const auto found = meet({0, 1, 2}, Meeting::Newcomers::kRefuse);
    EXPECT_THAT(numbers_of(*found.at(1)), ElementsAre(0, 1));
    ASSERT_FALSE(found.at(2).ok());
    EXPECT_EQ(found.at(2).error().code(), ErrorCode::kAborted);
  });
}

/// All first ranks start again at once, while a later member lives on another machine.
class SecondBeginTest : public NewcomerTest {
 protected:
  /// What rank 0 finds. The others depend on what it does then.
  Found begin_again(std::uint32_t world) {
    moved_ = centroid::now();
    std::vector<std::optional<Result<Found>>> found(world);
    std::vector<Thread> threads;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      threads.emplace_back("rank", [this, rank, world, &out = found[rank]] {
        PeerOptions options;
        options.rank = rank;
        options.world = world;
        options.token = "secret";
        options.may_be_newcomer = true;
        options.make_transport = transports();
        options.timeout = 10s;
        out.emplace(find_group(options, *rendezvous_, "address of rank " + std::to_string(rank)));
      });
    threads.clear();
    EXPECT_TRUE(found[0]->ok()) << found[0]->error().to_string();
    return found[0]->ok() ? **found[0] : Found();
  }
};

TEST_F(SecondBeginTest, FindsTheJobThatALaterMemberGoesOnWith) {
  play([&] {
    for (int moment = 0; moment < 10; ++moment) {
      rendezvous_ = transport::Endpoint{"localhost", static_cast<std::uint16_t>(7080 + moment)};
      open(3);
      for (const std::uint32_t lost : {0u, 1u}) meetings_.erase(lost);
      expect_all(meet({2}), {2}, 2);
      world_.let_pass(moment * 61ms);
      const Found found = begin_again(2);
      EXPECT_TRUE(found.addresses.empty()) << "a second job";
      EXPECT_EQ(found.leader, meetings_[2]->place());
    }
  });
}

TEST_F(SecondBeginTest, WaitsWhereTheMembersThatAreLeftHaveNotMetYet) {
  play([&] {
    rendezvous_ = transport::Endpoint{"localhost", 7080};
    open(4);
    for (const std::uint32_t lost : {0u, 1u}) meetings_.erase(lost);
    EXPECT_TRUE(begin_again(2).addresses.empty()) << "a second job";
  });
}

TEST_F(SecondBeginTest, FindsTheJobAlsoWhereItsNameResolvesSlowly) {
  play([&] {
    has_slow_name_ = true;
    for (int moment = 0; moment < 16; ++moment) {
      rendezvous_ = transport::Endpoint{std::string(SlowName::kName),
                                        static_cast<std::uint16_t>(7080 + moment)};
      open(3);
      for (const std::uint32_t lost : {0u, 1u}) meetings_.erase(lost);
      expect_all(meet({2}), {2}, 2);
      world_.let_pass((moment % 2) * 60s + moment * 233ms);  // while nobody is there
      const Found found = begin_again(2);
      EXPECT_TRUE(found.addresses.empty()) << "a second job";
      EXPECT_EQ(found.leader, meetings_[2]->place());
    }
  });
}

TEST_F(SecondBeginTest, IsOneWhereNobodyIsLeft) {
  play([&] {
    rendezvous_ = transport::Endpoint{"localhost", 7080};
    open(3);
    meetings_.clear();
    EXPECT_EQ(begin_again(3).addresses.size(), 3u);
  });
}

TEST_F(SecondBeginTest, IsSaidByTheMembersOfTheFirstOne) {
  play([&] {
    rendezvous_ = transport::Endpoint{"localhost", 7080};
    open(1);  // it listens there
    const auto other = made("secret");
    Membership alone;
    alone.job = "another job";
    alone.generation = alone.next = 1;
    alone.members.resize(1);
    alone.members[0].place = other->place();
    alone.members[0].address = "an address";
    testing::internal::CaptureStderr();
    other->begin(alone);
    world_.let_pass(15s);
    EXPECT_THAT(
        testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr("sharded.other_job"), HasSubstr(meetings_[0]->place().to_string())));
  });
}

TEST_F(NewcomerTest, IsRefusedWithTheSettingThatDiffers) {
  play([&] {
    open(2);
    for (const auto& [settings, why] :
         {std::pair{"--lr=1\t--batch=16", "--batch is 16, and 8 in the job"},
          {"--lr=1", "--batch is , and 8 in the job"},
          {"--lr=1\t--batch=8\t--new=1", "another version"}}) {
      Waiting newcomer(made("secret", settings), meetings_[0]->place());
      const auto answer = newcomer.answer();
      ASSERT_FALSE(answer.ok());
      EXPECT_EQ(answer.error().code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(answer.error().message(), HasSubstr(why));
    }
    EXPECT_EQ(meetings_[0]->newcomers(), 0u);
  });
}

TEST_F(NewcomerTest, IsSentElsewhereByOneThatDoesNotLead) {
  play([&] {
    open(2);
    Waiting newcomer(made("secret"), meetings_[1]->place());
    const auto answer = newcomer.answer();
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
  });
}

TEST_F(NewcomerTest, WithAnotherTokenIsNoNewcomer) {
  play([&] {
    open(2);
    Waiting newcomer(made("guess"), meetings_[0]->place());
    const auto answer = newcomer.answer();
    ASSERT_FALSE(answer.ok());
    EXPECT_THAT(answer.error().message(), HasSubstr("token"));
    EXPECT_EQ(meetings_[0]->newcomers(), 0u);
  });
}

TEST_F(NewcomerTest, WaitsNoLongerThanItsDeadlineAndIsForgotten) {
  play([&] {
    open(2);
    Waiting newcomer(made("secret"), meetings_[0]->place(), 200ms);
    const auto answer = newcomer.answer();
    ASSERT_FALSE(answer.ok());
    EXPECT_EQ(answer.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(answer.error().message(), HasSubstr("--join-timeout"));
    wait_for_newcomers(0, 0);
    expect_all(meet({0, 1}), {0, 1}, 2);
  });
}

TEST_F(NewcomerTest, LearnsThatItHasNoPlaceOrThatTheJobHasEnded) {
  play([&] {
    open(2);
    Waiting first(made("secret"), meetings_[0]->place());
    wait_for_newcomers(0, 1);
    meetings_[0]->refuse_newcomers("no memory");
    EXPECT_THAT(first.answer().error().message(), HasSubstr("no memory"));
    Waiting second(made("secret"), meetings_[0]->place());
    wait_for_newcomers(0, 1);
    meetings_[0]->end();
    const auto answer = second.answer();
    EXPECT_EQ(answer.error().code(), ErrorCode::kCancelled);
    EXPECT_THAT(answer.error().message(), HasSubstr("the job has ended"));
  });
}

}  // namespace
}  // namespace centroid::client
