#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Nodes, TheRosterNamesThemForGroupsAndSubgroups) {
  Job job(Carrier::kInProcess, 3);
  job.join({"a", "b", "a"});
  job.run([&](Group& group) {
    EXPECT_THAT(group.nodes(), ElementsAre("a", "b", "a"));
    const auto pair = group.rank() == 0 ? group.subgroup({0}) : group.subgroup({1, 2});
    ASSERT_TRUE(pair.ok());
    EXPECT_EQ(pair->nodes()[0], group.rank() == 0 ? "a" : "b");
  });
}

TEST(Nodes, AreUnknownWhenTheRosterSaysNothing) {
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) { EXPECT_THAT(group.nodes(), ElementsAre("", "")); });
}

TEST(Nodes, ARosterWithAnotherNumberOfThemIsRefused) {
  auto mesh = Mesh::open(tcp_factory(), transport::Endpoint());
  ASSERT_TRUE(mesh.ok());
  Roster roster;
  roster.endpoints.push_back((*mesh)->endpoint());
  roster.nodes = {"a", "b"};
  const auto group = (*mesh)->join(roster);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code(), ErrorCode::kInvalidArgument);
}

TEST(Nodes, ThisOneHasAName) {
  EXPECT_FALSE(transport::this_node().empty());
  EXPECT_EQ(transport::this_node(), transport::this_node());
}

TEST(SharedMemory, IsUsedBetweenRanksOfOneNodeUnlessItIsOff) {
  Job job(Carrier::kShm, 3);
  job.join({"a", "b", "a"});
  job.run([&](Group& group) {
    EXPECT_TRUE(succeeds(barrier(group)));  // connects all pairs of three
    const auto names = group.connections();
    ASSERT_EQ(names.size(), 3u);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == group.rank()) continue;
      const bool is_near = group.nodes()[rank] == group.nodes()[group.rank()];
      EXPECT_EQ(names[rank].starts_with("shared memory of process"), is_near) << names[rank];
    }
    Floats data(1 << 20, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(1 << 20, 3));
  });
  Job off(Carrier::kTcp, 2);
  off.join({"a", "a"});
  off.run([&](Group& group) {
    EXPECT_TRUE(succeeds(barrier(group)));
    for (const std::string& name : group.connections())
      EXPECT_THAT(name, ::testing::Not(HasSubstr("shared")));
  });
}

// One side has it off, or cannot: the pair stays on its first connection.
TEST(SharedMemory, IsOnlyUsedWhenBothSidesHaveItOn) {
  MeshOptions off;
  off.shared_memory = false;
  auto first = Mesh::open(tcp_factory(), transport::Endpoint());
  auto second = Mesh::open(tcp_factory(), transport::Endpoint(), off);
  ASSERT_TRUE(first.ok() && second.ok());
  Roster roster;
  roster.endpoints = {(*first)->endpoint(), (*second)->endpoint()};
  roster.nodes = {"a", "a"};
  const auto run = [&](Mesh& mesh, std::uint32_t rank) {
    Roster mine = roster;
    mine.rank = rank;
    auto group = mesh.join(mine);
    ASSERT_TRUE(group.ok()) << group.error().to_string();
    EXPECT_TRUE(succeeds(barrier(*group)));
    EXPECT_THAT(group->connections()[1 - rank], HasSubstr("127.0.0.1"));
  };
  std::thread other([&] { run(**second, 1); });
  run(**first, 0);
  other.join();
}

struct Leaving : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Leaving,
                         ::testing::Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

TEST_P(Leaving, IsAnsweredByPeersThatAreIdle) {
  MeshOptions options;
  options.leave_timeout = 20s;
  Job job(GetParam(), 3, options);
  job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });
  const TimePoint begin = now();
  job.leave(1);  // nobody else calls anything
  EXPECT_LT(now() - begin, 5s);
  job.leave(2);
  EXPECT_LT(now() - begin, 5s);
  // What is left knows it.
  const Status status = barrier(job.group(0));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("has left"));
}

// Calls between two silences, on threads that come and go: whoever waits takes over.
TEST_P(Leaving, IdlenessCostsNoOperation) {
  Job job(GetParam(), 2);
  for (int round = 0; round < 3; ++round) {
    const Deadline idle = now() + 40ms;  // longer than the driver waits before it listens
    while (now() < idle) std::this_thread::yield();
    job.run([](Group& group) {
      Floats data(1000, 1), more(100'000, 1);
      Handle handle = all_reduce_async(group, view(more));
      EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
      EXPECT_TRUE(succeeds(handle.wait()));
      EXPECT_EQ(data, Floats(1000, 2));
      EXPECT_EQ(more, Floats(100'000, 2));
    });
  }
}

/// What two ranks get when a bit of rank 1's numbers changes on the way.
std::vector<Status> with_a_bad_wire(bool checks_one, bool checks_other,
                                    std::vector<std::string> nodes) {
  transport::FaultPlan plan;
  plan.action = transport::FaultPlan::Action::kCorrupt;
  plan.at_operation = 0;  // the write of the only segment
  const WireOf faulty = with_faults(1, plan);
  const auto wire_of = [&](std::uint32_t rank) {
    Wire wire = faulty(rank);
    wire.options.shared_memory = false;
    wire.options.payload_checksum = rank == 0 ? checks_one : checks_other;
    return wire;
  };
  Job job(Carrier::kInProcess, 2, wire_of, std::move(nodes));
  std::vector<Status> out(2);
  job.run([&](Group& group) {
    EXPECT_TRUE(succeeds(barrier(group)));
    if (group.rank() == 1) *plan.operations = 0;
    Floats data(100, 1);
    CallOptions options;
    options.timeout = 10s;
    out[group.rank()] = group.rank() == 1 ? send(group, view(data), 0, options)
                                          : receive(group, view(data), 1, options);
  });
  return out;
}

TEST(PayloadChecksum, IsMadeUnlessBothSidesHaveItOffOrAreOnOneMachine) {
  EXPECT_FALSE(with_a_bad_wire(true, true, {})[0].ok());
  EXPECT_FALSE(with_a_bad_wire(true, false, {"a", "b"})[0].ok());
  EXPECT_TRUE(succeeds(with_a_bad_wire(false, false, {})[0]));
  EXPECT_TRUE(succeeds(with_a_bad_wire(true, true, {"a", "a"})[0]));
}

}  // namespace
}  // namespace centroid::collective::testing
