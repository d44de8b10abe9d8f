#include <algorithm>
#include <barrier>
#include <optional>

#include "tests/conformance/collective_fixture.h"
#include "tests/conformance/transport_fixture.h"
#include "transport/handshake.h"

namespace centroid::collective::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Values;

/// Two ranks connect when the first operation needs it.
struct Connect : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Connect, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

std::size_t peers_of(const Group& group) {
  const auto names = group.connections();
  return static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(), [](const auto& name) { return !name.empty(); }));
}

CallOptions within(std::chrono::milliseconds timeout, Algorithm algorithm = Algorithm::kAuto) {
  CallOptions options = with(Reduction::kSum, algorithm);
  options.timeout = timeout;
  return options;
}

TEST_P(Connect, OnlyPairsThatAnOperationNeeds) {
  Job job(GetParam(), 8);
  job.run([&](Group& group) { EXPECT_EQ(peers_of(group), 0u); });
  job.run([&](Group& group) {
    Floats data(10'000, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), with(Reduction::kSum, Algorithm::kRing))));
    EXPECT_EQ(data, Floats(10'000, 8));
  });
  job.run([&](Group& group) { EXPECT_EQ(peers_of(group), 2u); });
  job.run([&](Group& group) {
    Floats small(10, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(small))));  // to ranks r^1, r^2 and r^4
    EXPECT_EQ(small, Floats(10, 8));
  });
  // Of r^1, r^2 and r^4 one is a neighbour.
  job.run([&](Group& group) { EXPECT_EQ(peers_of(group), 4u); });
  job.run([&](Group& group) {
    Floats out(8, 1), in(8);
    EXPECT_TRUE(succeeds(all_to_all(group, view(out), view(in))));
    EXPECT_EQ(in, out);
    EXPECT_EQ(peers_of(group), 7u);
  });
}

TEST_P(Connect, SubgroupsConnectTheirMembers) {
  Job job(GetParam(), 6);
  job.run([&](Group& group) {
    const bool is_even = group.rank() % 2 == 0;
    auto half = group.subgroup(is_even ? std::vector<std::uint32_t>{0, 2, 4}
                                       : std::vector<std::uint32_t>{1, 3, 5});
    ASSERT_TRUE(half.ok());
    Floats data(100, 1);
    EXPECT_TRUE(succeeds(all_reduce(*half, view(data), with(Reduction::kSum, Algorithm::kRing))));
    EXPECT_EQ(data, Floats(100, 3));
    const auto names = group.connections();
    for (std::uint32_t rank = 0; rank < 6; ++rank)
      EXPECT_EQ(!names[rank].empty(), rank != group.rank() && rank % 2 == group.rank() % 2);
  });
}

// Without a head start every pair is called from both sides.
TEST_P(Connect, BothSidesAtOnceMakeOneConnection) {
  MeshOptions options;
  options.head_start = 0ms;
  Job job(GetParam(), 5, options);
  for (int generation = 0; generation < 12; ++generation) {
    job.run([&](Group& group) {
      Floats out(5, static_cast<float>(group.rank())), in(5);
      EXPECT_TRUE(succeeds(all_to_all(group, view(out), view(in), within(20s))));
      EXPECT_EQ(in, (Floats{0, 1, 2, 3, 4}));
      EXPECT_EQ(peers_of(group), 4u);
    });
    job.join();
  }
}

TEST_P(Connect, OneSideAloneIsEnough) {
  Job job(GetParam(), 2);
  for (const std::uint32_t sender : {0u, 1u}) {
    Floats data(10, 1);
    Handle sent = send_async(job.group(sender), view(data), 1 - sender, within(20s));
    EXPECT_TRUE(succeeds(sent.wait()));  // the other one has not begun
    Floats got(10);
    EXPECT_TRUE(succeeds(receive(job.group(1 - sender), view(got), sender, within(20s))));
    EXPECT_EQ(got, data);
    job.join();
  }
}

// Some are larger than what may be sent before the other side has begun.
TEST_P(Connect, OperationsUnderWayShareTheNewConnection) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    std::vector<Floats> data;
    for (const std::size_t count : {10u, 3'000'000u, 1'000u, 2'000'000u, 300'000u})
      data.emplace_back(count, 1);
    std::vector<Handle> handles;
    for (Floats& one : data)
      handles.push_back(all_reduce_async(group, view(one), within(50s, Algorithm::kRing)));
    for (Handle& handle : handles) EXPECT_TRUE(succeeds(handle.wait()));
    for (const Floats& one : data) EXPECT_EQ(one, Floats(one.size(), 3));
  });
}

TEST_P(Connect, ASilentRankIsNamedByThoseWhoHaveNoConnectionWithIt) {
  Job job(GetParam(), 8);
  const TimePoint begin = now();
  job.run([&](Group& group) {
    if (group.rank() == 5) return;
    Floats data(10'000, 1);
    const Status status = all_reduce(group, view(data), within(1500ms, Algorithm::kRing));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(status.error().message(), HasSubstr("rank 5 did not do its part within 1500 ms"));
    EXPECT_EQ(group.culprit(), 5u);
    EXPECT_LE(peers_of(group), 2u);
  });
  EXPECT_LT(now() - begin, 10s);
}

TEST_P(Connect, ARankThatLeavesEndsTheOperationFarFromIt) {
  Job job(GetParam(), 6);
  const auto ring = [](Group& group) {
    Floats data(600'000, 1);
    return all_reduce(group, view(data), within(50s, Algorithm::kRing));
  };
  job.run([&](Group& group) { EXPECT_TRUE(succeeds(ring(group))); });
  const TimePoint begin = now();
  std::vector<std::thread> others;
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    if (rank == 3) continue;
    others.emplace_back([&, rank] {
      const Status status = ring(job.group(rank));
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.error().message(), HasSubstr("rank 3"));
    });
  }
  job.leave(3);
  for (std::thread& other : others) other.join();
  EXPECT_LT(now() - begin, 30s);
}

TEST_P(Connect, AGroupThatWasOverBeforeIsToldWhenTheyConnect) {
  Job job(GetParam(), 3);
  job.group(1).abort(Error(ErrorCode::kAborted, "enough"));
  EXPECT_FALSE(barrier(job.group(1)).ok());
  const Status status = barrier(job.group(2), within(20s));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("enough"));
}

// Three of four ranks are there; where the fourth should be nobody listens.
TEST(Unreachable, IsNamedByAllWithinTheDeadlineAndTheNextGenerationWorks) {
  std::vector<std::unique_ptr<Mesh>> meshes;
  Roster roster;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
    ASSERT_TRUE(mesh.ok());
    roster.endpoints.push_back((*mesh)->endpoint());
    meshes.push_back(std::move(*mesh));
  }
  meshes[1].reset();
  const auto run = [&](const Roster& shared, const std::vector<std::uint32_t>& of_meshes,
                       std::chrono::milliseconds time, std::vector<Status>& out) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < shared.endpoints.size(); ++rank) {
      if (!meshes[of_meshes[rank]]) continue;
      threads.emplace_back([&, rank] {
        Roster mine = shared;
        mine.rank = rank;
        auto group = meshes[of_meshes[rank]]->join(mine);
        ASSERT_TRUE(group.ok());
        Floats data(10'000, 1);
        out[rank] = all_reduce(*group, view(data), within(time, Algorithm::kRing));
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const TimePoint begin = now();
  std::vector<Status> out(4);
  run(roster, {0, 1, 2, 3}, 1500ms, out);
  EXPECT_LT(now() - begin, 8s);
  for (const std::uint32_t rank : {0u, 2u, 3u}) {
    ASSERT_FALSE(out[rank].ok());
    EXPECT_EQ(out[rank].error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(
        out[rank].error().message(),
        AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1 did not do its part within 1500 ms")));
  }
  roster.endpoints.erase(roster.endpoints.begin() + 1);
  ++roster.generation;
  std::vector<Status> next(3);
  run(roster, {0, 2, 3}, 50s, next);
  for (const Status& status : next) EXPECT_TRUE(succeeds(status));
}

TEST(Unreachable, TheErrorSaysWhereAndWhy) {
  auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
  auto other = Mesh::open(tcp_factory(), transport::Endpoint());
  ASSERT_TRUE(mesh.ok() && other.ok());
  Roster roster;
  roster.endpoints = {(*mesh)->endpoint(), (*other)->endpoint()};
  other->reset();
  auto group = (*mesh)->join(roster);
  ASSERT_TRUE(group.ok());
  const Status status = barrier(*group, within(1500ms));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(),
              AllOf(HasSubstr("barrier"), HasSubstr("rank 1 did not do its part within 1500 ms"),
                    HasSubstr("no connection"), HasSubstr(roster.endpoints[1].to_string())));
  EXPECT_EQ(group->culprit(), 1u);
}

// Rank 1 has nothing to do with the lost rank before, and learns of it from rank 0.
TEST(Culprit, IsThatOfACallThatBeginsAfterTheLoss) {
  transport::FaultPlan plan;
  plan.action = transport::FaultPlan::Action::kCut;
  plan.at_operation = 0;
  Job job(Carrier::kInProcess, 3, with_faults(2, plan));
  std::barrier together(3);
  job.run([&](Group& group) {
    const std::uint32_t rank = group.rank();
    std::optional<Group> with_1, with_2;
    if (rank != 2) with_1.emplace(std::move(group.subgroup({0, 1})).value());
    if (rank != 1) with_2.emplace(std::move(group.subgroup({0, 2})).value());
    if (with_1) {
      EXPECT_TRUE(succeeds(barrier(*with_1, within(20s))));
    }
    if (with_2) {
      EXPECT_TRUE(succeeds(barrier(*with_2, within(20s))));
    }
    if (rank == 2) *plan.operations = 0;
    together.arrive_and_wait();
    if (rank == 2) {
      EXPECT_FALSE(barrier(*with_2, within(20s)).ok());
    }
    together.arrive_and_wait();
    if (rank == 2) return;
    EXPECT_TRUE(succeeds(barrier(*with_1, within(20s))));  // rank 0 has seen the loss, in no call
    const auto all = group.subgroup({0, 1, 2});
    EXPECT_FALSE(barrier(*all, within(20s)).ok());
    EXPECT_EQ(group.culprit(), 2u);
  });
}

struct Greetings : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Greetings, Values(Carrier::kInProcess, Carrier::kTcp),
                         ::testing::PrintToStringParamName());

/// Calls `mesh`, which answers no greeting any more once `next` has begun.
Task<void> call_too_early(transport::Transport& transport, Mesh& mesh, std::function<void()> next) {
  transport::Greeting greeting;
  greeting.role = "peer";
  greeting.accepts_roles = {"peer"};
  auto early = co_await transport.connect(mesh.endpoint(), now() + 20s);
  auto second = co_await transport.connect(mesh.endpoint(), now() + 20s);
  CO_ASSERT(early.ok() && second.ok());
  // Calls are accepted in their order: once this one is answered, the first is being read.
  const auto peer = co_await transport::send_hello(**second, greeting);
  CO_ASSERT(peer.ok());
  next();
  const auto answer = co_await (*early)->read_header();
  EXPECT_FALSE(answer.ok()) << "a frame of kind " << answer->header.kind;
}

// A peer that called a moment too early calls again; a refusal would end its operation.
TEST_P(Greetings, ThatTheEndOfTheirGenerationCutsShortAreNoRefusals) {
  const bool is_tcp = GetParam() == Carrier::kTcp;
  const auto transports =
      is_tcp ? tcp_factory() : inprocess_factory(transport::make_inprocess_hub());
  transport::Endpoint own;
  if (!is_tcp) own.host = "rank0";
  auto mesh = Mesh::open(transports, own);
  ASSERT_TRUE(mesh.ok());
  Roster roster;
  roster.endpoints = {(*mesh)->endpoint(), {"nobody", 1}};
  std::vector<Group> groups;
  const auto next = [&] {
    ++roster.generation;
    groups.push_back((*mesh)->join(roster).value());
  };
  next();
  IoThread thread("caller");
  const auto transport = transports(thread.executor());
  transport::testing::wait(thread, call_too_early(*transport, **mesh, next));
  groups.clear();
}

// A generation that begins while a group of the one before is still there is the one that answers.
TEST(Generations, TheLastOneAnswers) {
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<Group> groups;
  Roster roster;
  for (int rank = 0; rank < 2; ++rank) {
    auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
    ASSERT_TRUE(mesh.ok());
    roster.endpoints.push_back((*mesh)->endpoint());
    meshes.push_back(std::move(*mesh));
  }
  for (const std::uint64_t generation : {1u, 2u}) {
    roster.generation = generation;
    for (roster.rank = 0; roster.rank < 2; ++roster.rank) {
      auto group = meshes[roster.rank]->join(roster);
      ASSERT_TRUE(group.ok());
      groups.push_back(*group);
    }
  }
  std::thread other([&] { EXPECT_TRUE(succeeds(barrier(groups[3], within(20s)))); });
  EXPECT_TRUE(succeeds(barrier(groups[2], within(20s))));
  other.join();
  const Status old = barrier(groups[1], within(20s));
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().code(), ErrorCode::kAborted);
  groups.clear();
}

}  // namespace
}  // namespace centroid::collective::testing
