#include <cstring>

#include "tests/conformance/collective_numbers.h"
#include "transport/collective/schedule.h"

namespace centroid::collective::testing {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;

/// A letter per rank: its node.
std::vector<std::string> nodes_of(const std::string& grid) {
  std::vector<std::string> out;
  for (const char node : grid) out.emplace_back(1, node);
  return out;
}
struct GridJob : Job {
  GridJob(Carrier carrier, const std::string& grid)
      : Job(carrier, static_cast<std::uint32_t>(grid.size())) {
    join(nodes_of(grid));
  }
};

CallOptions hierarchical(Reduction reduction = Reduction::kSum) {
  return with(reduction, Algorithm::kHierarchical);
}

struct Hierarchy : ::testing::TestWithParam<std::tuple<Carrier, std::string>> {
  Carrier carrier() const { return std::get<0>(GetParam()); }
  std::string grid() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, Hierarchy,
                         Combine(Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                                 Values("aa", "aaaa", "ab", "abcd", "aabb", "abab", "aaaabbbb",
                                        "aabbccdd", "aaab", "abbb", "abaa", "aaabbc", "abcabcab",
                                        "aabbc")),
                         [](const auto& each) {
                           return name_of(std::get<0>(each.param)) + "_" + std::get<1>(each.param);
                         });

TEST_P(Hierarchy, ExactNumbers) {
  GridJob job(carrier(), grid());
  job.run([&](Group& group) {
    expect_exact_numbers(group, hierarchical());
    expect_a_hundred_thousand(group, hierarchical());
  });
}

// Numbers whose sum depends on the order: every rank must have the same bits, and again next time.
TEST_P(Hierarchy, TheSameBitsOnEveryRankEveryTime) {
  constexpr std::size_t kCount = 150'001;  // several segments
  const std::size_t world = grid().size();
  std::vector<Floats> results(world), repeated(world);
  for (std::vector<Floats>* const out : {&results, &repeated}) {
    GridJob job(carrier(), grid());
    job.run([&](Group& group) {
      CounterRng rng(7, group.rank());
      Floats& data = (*out)[group.rank()];
      data.resize(kCount);
      for (float& x : data)
        x = static_cast<float>(std::exp(20 * rng.uniform() - 10) * rng.normal());
      EXPECT_TRUE(succeeds(all_reduce(group, view(data), hierarchical(Reduction::kMean))));
    });
  }
  for (std::size_t rank = 0; rank < world; ++rank) {
    EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(), 4 * kCount), 0);
    EXPECT_EQ(std::memcmp(repeated[rank].data(), results[0].data(), 4 * kCount), 0);
  }
}

TEST_P(Hierarchy, AWeightedMeanCountsEachRankByItsWeight) {
  const std::size_t world = grid().size();
  GridJob job(carrier(), grid());
  job.run([&](Group& group) {
    double sum = 0, weights = 0;
    for (std::size_t rank = 0; rank < world; ++rank) {
      sum += (static_cast<double>(rank) + 2) * (10 * static_cast<double>(rank));
      weights += static_cast<double>(rank) + 2;
    }
    CallOptions options = hierarchical(Reduction::kWeightedMean);
    options.weight = group.rank() + 2.0;
    Floats data(1001, 10 * static_cast<float>(group.rank())), out(1001);
    EXPECT_TRUE(succeeds(all_reduce(group, view(std::as_const(data)), view(out), options)));
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), options)));
    for (std::size_t i = 0; i < data.size(); ++i) {
      EXPECT_NEAR(data[i], sum / weights, 1e-4);
      EXPECT_EQ(data[i], out[i]);
    }
  });
}

Schedule plan(const std::vector<std::string>& nodes, std::uint32_t rank, std::uint64_t count) {
  Shape shape;
  shape.rank = rank;
  shape.world = static_cast<std::uint32_t>(nodes.size());
  shape.is_in_place = true;
  shape.segment_bytes = 4096;
  return hierarchical_all_reduce(shape, count, nodes);
}

// 2(M-1)/M of the bytes, whatever the number of ranks in a node.
TEST_P(Hierarchy, BytesBetweenNodesArePlannedAsARingOfNodes) {
  constexpr std::uint64_t kCount = 120'120;  // parts of every grid are whole
  const std::vector<std::string> nodes = nodes_of(grid());
  std::map<std::string, std::uint64_t> sent, received;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) {
    sent[nodes[rank]] += 0;
    const Schedule schedule = plan(nodes, rank, kCount);
    for (const SendStep& send : schedule.sends)
      if (nodes[send.peer] != nodes[rank]) sent[nodes[rank]] += send.from.bytes;
    for (const ReceiveStep& receive : schedule.receives)
      if (nodes[receive.peer] != nodes[rank]) received[nodes[rank]] += receive.to.bytes;
  }
  for (const auto& [node, bytes] : sent) {
    EXPECT_EQ(bytes, 2 * (sent.size() - 1) * kCount * 4 / sent.size()) << node;
    EXPECT_EQ(bytes, received[node]) << node;
  }
}

// Bytes count when they come, frames when their head is read: of each peer one frame may have come,
// in whole or in part, that does not count yet.
std::uint64_t heads(std::uint64_t frames, std::size_t peers) { return 96 * (frames + peers); }

// What the counters of the connections say is what was planned, and the headers.
TEST_P(Hierarchy, CountersSayWhatWasPlanned) {
  constexpr std::uint64_t kCount = 120'120;
  const std::vector<std::string> nodes = nodes_of(grid());
  GridJob job(carrier(), grid());
  job.run([&](Group& group) {
    Floats data(kCount, 1);
    const auto before = group.traffic();
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), hierarchical())));
    const auto after = group.traffic();
    const std::uint64_t planned = bytes_sent(plan(nodes, group.rank(), kCount));
    const std::uint64_t frames = after.frames_out - before.frames_out;
    const std::uint64_t sent = after.bytes_out - before.bytes_out;
    EXPECT_GE(sent, planned);
    EXPECT_LE(sent, planned + 96 * frames);
    EXPECT_LE(frames, 150u);
  });
}

struct Grids : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Grids, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

// The lone rank has no other traffic, so its counters are those between the nodes.
TEST_P(Grids, TheLoneRankOfANodeMovesTheBytesOnceEachWay) {
  GridJob job(GetParam(), "aaab");
  job.run([&](Group& group) {
    Floats data(1 << 20, 1);
    const auto before = group.traffic();
    EXPECT_TRUE(succeeds(barrier(group)));  // so that nothing has come before
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), hierarchical())));
    const auto after = group.traffic();
    EXPECT_EQ(data, Floats(1 << 20, 4));
    if (group.rank() != 3) return;
    const std::uint64_t ideal = 4 << 20;  // 2(M-1)/M of 4 MiB, two nodes
    EXPECT_GE(after.bytes_out - before.bytes_out, ideal);
    EXPECT_LE(after.bytes_out - before.bytes_out,
              ideal + 96 * (after.frames_out - before.frames_out));
    EXPECT_GE(after.bytes_in - before.bytes_in, ideal);
    EXPECT_LE(after.bytes_in - before.bytes_in,
              ideal + heads(after.frames_in - before.frames_in, 3));
  });
}

// Without being asked: large messages where a node has several ranks.
TEST_P(Grids, NodesDecideWhatIsChosen) {
  for (const auto& [grid, name] :
       {std::pair("aabb", "hierarchical"), std::pair("abcd", "halving")}) {
    GridJob job(GetParam(), grid);
    job.run([&, name = name](Group& group) {
      Floats large(1 << 18, 1);
      EXPECT_TRUE(succeeds(all_reduce(group, view(large))));
      EXPECT_EQ(large, Floats(1 << 18, 4));
      (void)barrier(group);  // what fails next ends the group, maybe while others are in here
      large.resize(large.size() + group.rank());  // refused, with its name
      // In a group of its own: its end must not meet ranks that are still in the operation above.
      const auto same = group.subgroup({0, 1, 2, 3});
      ASSERT_TRUE(same.ok());
      EXPECT_THAT(all_reduce(*same, view(large)).error().message(), HasSubstr(name));
    });
  }
}

// A rank of node b begins late: what node a sends meanwhile to the other is bounded.
TEST_P(Grids, ANodeMayBeLate) {
  GridJob job(GetParam(), "aabb");
  constexpr std::size_t kCount = 8 << 20;
  job.run([&](Group& group) {
    Floats data(kCount, static_cast<float>(group.rank()));
    CallOptions other;
    other.tag = 1;
    const auto before = group.traffic();
    Handle handle;
    if (group.rank() != 3) handle = all_reduce_async(group, view(data), hierarchical());
    EXPECT_TRUE(succeeds(barrier(group, other)));
    EXPECT_TRUE(succeeds(barrier(group, other)));
    const std::uint64_t ahead = group.traffic().bytes_in - before.bytes_in;
    EXPECT_TRUE(group.rank() != 2 || ahead <= (4 << 20) + 4096) << ahead;
    EXPECT_TRUE(succeeds(barrier(group, other)));
    if (group.rank() == 3) handle = all_reduce_async(group, view(data), hierarchical());
    EXPECT_TRUE(succeeds(handle.wait()));
    EXPECT_EQ(data, Floats(kCount, 6));
  });
}

}  // namespace
}  // namespace centroid::collective::testing
