#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <latch>

#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing::collective_failure_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Values;

struct Failure : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Failure, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

CallOptions within(std::chrono::milliseconds timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

TEST_P(Failure, ASilentRankIsNamedByAllWithinTheDeadline) {
  Job job(GetParam(), 4);
  job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });  // the others need no time
  const TimePoint begin = now();
  job.run([&](Group& group) {
    if (group.rank() == 1) return;
    Floats data(1 << 12, 1);
    CallOptions options = within(1500ms);
    options.algorithm = Algorithm::kRing;
    const Status status = all_reduce(group, view(data), options);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(status.error().message(),
                AllOf(HasSubstr("all_reduce (sum, ring) of 4096 f32"),
                      HasSubstr("rank 1 did not do its part within 1500 ms")));
  });
  EXPECT_LT(now() - begin, 10s);
  // The next generation works, and the operation can be repeated.
  job.join();
  job.run([&](Group& group) {
    Floats data(1 << 20, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(1 << 20, 4));
  });
}

TEST_P(Failure, AnotherSizeIsNamedByAll) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    Floats data(group.rank() == 2 ? 11 : 10, 1);
    const Status status = all_reduce(group, view(data), within(50s));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(status.error().message(), AllOf(HasSubstr("of 11 f32"), HasSubstr("of 10 f32")));
  });
}

TEST_P(Failure, AnotherOperationIsNamedByAll) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    Floats data(10, 1);
    const Status status = group.rank() == 0 ? all_reduce(group, view(data), within(50s))
                                            : broadcast(group, view(data), 1, within(50s));
    const Status after = barrier(group, within(50s));
    const Status& failed = status.ok() ? after : status;
    ASSERT_FALSE(failed.ok());
    // The root of a broadcast expects nothing, so its rank may be in the barrier when it sees the
    // other's message.
    EXPECT_THAT(
        failed.error().message(),
        AllOf(HasSubstr("all_reduce"), AnyOf(HasSubstr("broadcast"), HasSubstr("barrier"))));
  });
}

TEST_P(Failure, AbortEndsWhatIsUnderWayOnEveryRank) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    Floats data(100, 1);
    if (group.rank() == 2) {
      Floats none(1);
      group.abort(Error(ErrorCode::kAborted, "the round was given up"));
      EXPECT_FALSE(barrier(group).ok());
      return;
    }
    Handle handle = all_reduce_async(group, view(data), within(20s));
    const Status status = handle.wait();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kAborted);
    EXPECT_THAT(status.error().message(), HasSubstr("the round was given up"));
    EXPECT_EQ(barrier(group).error().code(), ErrorCode::kAborted);
  });
}

TEST_P(Failure, OtherGroupsGoOnAfterAnAbort) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    auto pair = group.rank() < 2 ? group.subgroup({0, 1}) : group.subgroup({2});
    ASSERT_TRUE(pair.ok());
    pair->abort(Error(ErrorCode::kAborted, "enough"));
    EXPECT_TRUE(succeeds(barrier(group)));
    Floats data(5, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(5, 3));
  });
}

TEST_P(Failure, ARankThatLeavesIsNamed) {
  Job job(GetParam(), 3);
  job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });
  std::thread leaver([&] { job.leave(1); });
  Floats data(10, 1);
  const Status status = all_reduce(job.group(0), view(data), within(50s));
  leaver.join();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("rank 1"));
}

TEST_P(Failure, ARankMayLeaveAfterItsPart) {
  Job job(GetParam(), 2);
  job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });
  Floats sent(10, 7), received(10);
  ASSERT_TRUE(succeeds(broadcast(job.group(0), view(sent), 0)));
  job.leave(0);  // before the other rank has begun to receive
  EXPECT_TRUE(succeeds(broadcast(job.group(1), view(received), 0, within(50s))));
  EXPECT_EQ(received, sent);
  const Status later = broadcast(job.group(1), view(received), 0, within(50s));
  ASSERT_FALSE(later.ok());
  EXPECT_THAT(later.error().message(), HasSubstr("rank 0 has left the group"));
}

TEST_P(Failure, TheInputIsPutBackWhenAsked) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    if (group.rank() == 1) return;
    Floats data(1 << 20);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000);
    const Floats before = data;
    CallOptions options = within(300ms);
    options.preserve_input = true;
    EXPECT_FALSE(all_reduce(group, view(data), options).ok());
    EXPECT_EQ(data, before);
  });
}

TEST_P(Failure, ATimeoutOfAnAsyncCallNeedsNoWaiter) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    if (group.rank() == 1) return;
    Floats data(10);
    Handle handle = all_reduce_async(group, view(data), within(100ms));
    const Deadline deadline = now() + 20s;
    while (!handle.test() && now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(handle.test());
    EXPECT_FALSE(handle.wait().ok());
  });
}

/// Enough that nobody is done before rank 2 has ended; little enough that the others' own part
/// takes much less than the deadline, also under a sanitizer.
constexpr std::size_t kProcessElements = 4 << 20;

/// A rank in a process of its own: the highest, whose address nobody knows; it calls the others.
pid_t fork_rank(const Roster& shared, const std::function<void(Group&)>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
  Roster roster = shared;
  roster.rank = static_cast<std::uint32_t>(roster.endpoints.size()) - 1;
  if (auto group = mesh.ok() ? (*mesh)->join(roster) : Error(mesh.error());
      group.ok() && barrier(*group).ok())
    body(*group);
  ::_exit(0);
}

/// Ranks 0 and 1 here, rank 2 in another process; what the two get.
std::vector<Status> with_process(Carrier carrier, const std::function<void(Group&)>& body,
                                 CallOptions options, bool kills) {
  std::vector<std::unique_ptr<Mesh>> meshes;
  Roster roster;
  roster.generation = 1;
  for (int rank = 0; rank < 2; ++rank) {
    auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
    EXPECT_TRUE(mesh.ok());
    roster.endpoints.push_back((*mesh)->endpoint());
    meshes.push_back(std::move(*mesh));
  }
  roster.endpoints.emplace_back();
  if (carrier == Carrier::kShm) roster.nodes = {"here", "here", "here"};
  const pid_t child = fork_rank(roster, body);
  std::vector<Status> out(2);
  std::latch ended(2);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Floats data(kProcessElements, 1);
      Roster mine = roster;
      mine.rank = rank;
      auto group = meshes[rank]->join(mine);
      ASSERT_TRUE(group.ok()) << group.error().to_string();
      EXPECT_TRUE(succeeds(barrier(*group)));  // all are connected
      out[rank] = all_reduce(*group, view(data), options);
      ended.count_down();
      if (!kills) return;
      ended.wait();  // else the other one sees a dead peer instead of a silent one
      ::kill(child, SIGKILL);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return out;
}

struct Process : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Process, Values(Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

TEST_P(Process, ADeadPeerEndsTheOperationOnAllSurvivors) {
  const auto die = [](Group& group) {
    Floats data(kProcessElements, 1);
    Handle handle = all_reduce_async(group, view(data));
    ::kill(::getpid(), SIGKILL);
  };
  const TimePoint begin = now();
  for (const Status& status : with_process(GetParam(), die, within(20s), false)) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message(), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 2")));
  }
  EXPECT_LT(now() - begin, 15s);
}

TEST_P(Process, AStoppedPeerEndsTheOperationOnAllSurvivorsWithinTheDeadline) {
  const auto stop = [](Group& group) {
    Floats data(kProcessElements, 1);
    Handle handle = all_reduce_async(group, view(data));
    ::kill(::getpid(), SIGSTOP);
  };
  const TimePoint begin = now();
  for (const Status& status : with_process(GetParam(), stop, within(2s), true)) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(status.error().message(), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 2")));
  }
  EXPECT_LT(now() - begin, 10s);
}

// Whatever one connection does to whichever operation, every rank's call ends, with an error or
// right.
TEST(Faults, EveryRankEndsWhereverATransportFails) {
  using Action = transport::FaultPlan::Action;
  std::uint64_t failed = 0;
  for (const Action action : {Action::kFail, Action::kCut, Action::kCorrupt, Action::kTruncate}) {
    for (std::uint64_t at = 0; at < 32; at += 3) {
      const bool connects = at % 2 == 0;  // or is connected when it begins
      SCOPED_TRACE("action " + std::to_string(static_cast<int>(action)) + " at " +
                   std::to_string(at));
      transport::FaultPlan plan;
      plan.action = action;
      plan.at_operation = at;
      Job job(Carrier::kInProcess, 3, with_faults(1, plan));
      if (!connects) job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });
      *plan.operations = 0;
      std::atomic<std::uint64_t> bad = 0;
      job.run([&](Group& group) {
        Floats data(30'000, 1);
        const Status status =
            all_reduce(group, view(data), with(Reduction::kSum, Algorithm::kRing));
        if (status.ok()) {
          EXPECT_EQ(data, Floats(30'000, 3));
        } else {
          ++bad;
        }
      });
      failed += bad;
    }
  }
  EXPECT_GT(failed, 20u);
}

/// Two ranks that connect; what the second gets.
Status meet(const MeshOptions& ours, const MeshOptions& theirs, std::uint64_t our_generation = 1) {
  auto first = Mesh::open(tcp_factory(), transport::Endpoint(), ours);
  auto second = Mesh::open(tcp_factory(), transport::Endpoint(), theirs);
  EXPECT_TRUE(first.ok() && second.ok());
  Roster roster;
  roster.generation = our_generation;
  roster.endpoints = {(*first)->endpoint(), (*second)->endpoint()};
  auto group = (*first)->join(roster);
  roster.generation = 1;
  roster.rank = 1;
  auto other = (*second)->join(roster);
  EXPECT_TRUE(group.ok() && other.ok());
  return barrier(*other, within(20s));
}

void expect_refused(const MeshOptions& ours, const MeshOptions& theirs, const std::string& why) {
  const Status refused = meet(ours, theirs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr(why), HasSubstr("barrier")));
}

TEST(Join, StrangersAreRefused) {
  MeshOptions ours, theirs;
  ours.token = "secret";
  theirs.token = "guess";
  expect_refused(ours, theirs, "token");
}

TEST(Join, RanksWithAnotherModelAreRefused) {
  MeshOptions ours, theirs;
  ours.manifest_hash = 1;
  theirs.manifest_hash = 2;
  expect_refused(ours, theirs, "another model: rank 1");
}

TEST(Join, AnOlderGenerationIsTurnedAway) {
  const Status refused = meet({}, {}, 5);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(refused.error().message(), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace centroid::collective::testing::collective_failure_test
