#include <atomic>
#include <numeric>

#include "common/async/io_thread.h"
#include "tests/conformance/collective_fixture.h"

namespace centroid::collective::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Values;

struct Move : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Move, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

std::span<const float> all_of(const Floats& values) { return values; }

TEST_P(Move, AllGatherPutsThePartsInRankOrder) {
  Job job(GetParam(), 4);
  job.run([&](Group& group) {
    const float ten = 10 * static_cast<float>(group.rank());
    const Floats part = {ten, ten + 1};
    Floats all(8);
    EXPECT_TRUE(succeeds(all_gather(group, view(part), view(all))));
    EXPECT_THAT(all, ElementsAre(0, 1, 10, 11, 20, 21, 30, 31));
    const std::vector<std::uint64_t> counts = {2, 0, 3, 1};
    Floats uneven(6, -1);
    const std::size_t begin = group.rank() < 2 ? 2 * group.rank() : 2 + 3 * (group.rank() - 2);
    const auto mine = view(uneven).subspan(begin, counts[group.rank()]);
    std::fill(mine.begin(), mine.end(), ten);
    EXPECT_TRUE(succeeds(
        all_gather(group, std::span<const float>(mine), view(uneven), CallOptions(), counts)));
    EXPECT_THAT(uneven, ElementsAre(0, 0, 20, 20, 20, 30));
    const Floats large(40'001, ten);
    Floats together(4 * large.size());
    EXPECT_TRUE(succeeds(all_gather(group, view(large), view(together))));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto at = together.begin() + static_cast<std::ptrdiff_t>(rank * large.size());
      EXPECT_EQ(Floats(at, at + 40'001), Floats(40'001, 10 * static_cast<float>(rank)));
    }
  });
}

TEST_P(Move, AllToAllGivesEachRankItsPartOfEveryone) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    const bool is_first = group.rank() == 0;
    Floats input = is_first ? Floats{10, 20, 30, 40} : Floats{50, 60, 70, 80};
    const Floats wanted = is_first ? Floats{10, 20, 50, 60} : Floats{30, 40, 70, 80};
    Floats output(4);
    EXPECT_TRUE(succeeds(all_to_all(group, all_of(input), view(output))));
    EXPECT_EQ(output, wanted);
    EXPECT_TRUE(succeeds(all_to_all(group, all_of(input), view(input))));
    EXPECT_EQ(input, wanted);
    using Counts = std::vector<std::uint64_t>;
    const Counts out = is_first ? Counts{1, 3} : Counts{2, 2};
    const Counts in = is_first ? Counts{1, 2} : Counts{3, 2};
    const Floats uneven = is_first ? Floats{10, 20, 21, 22} : Floats{30, 31, 40, 41};
    Floats got(is_first ? 3 : 5);
    EXPECT_TRUE(succeeds(all_to_all(group, view(uneven), view(got), CallOptions(), out, in)));
    EXPECT_EQ(got, is_first ? Floats({10, 30, 31}) : Floats({20, 21, 22, 40, 41}));
    Floats three(3);
    EXPECT_EQ(all_to_all(group, all_of(three), view(output)).error().code(),
              ErrorCode::kInvalidArgument);
  });
}

TEST_P(Move, BroadcastReachesEveryRankFromAnyRoot) {
  for (const std::uint32_t world : {1u, 2u, 3u, 5u, 8u}) {
    Job job(GetParam(), world);
    job.run([&](Group& group) {
      for (const std::size_t count : {0u, 1u, 1000u, 30'000u}) {
        for (std::uint32_t root = 0; root < world; root += 2) {
          Floats data(count, static_cast<float>(group.rank()));
          EXPECT_TRUE(succeeds(broadcast(group, view(data), root)));
          EXPECT_EQ(data, Floats(count, static_cast<float>(root)));
        }
      }
      Floats data(3);
      const Status refused = broadcast(group, view(data), world);
      EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(refused.error().message(),
                  HasSubstr("root " + std::to_string(world) + " is not in a group of"));
    });
  }
}

TEST_P(Move, GatherAndScatterAreInverse) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    for (std::uint32_t root = 0; root < 3; ++root) {
      const std::vector<std::uint64_t> counts = {2, 0, 3};
      const bool is_root = group.rank() == root;
      const Floats part(counts[group.rank()], static_cast<float>(group.rank()));
      Floats whole(is_root ? 5 : 0), back(part.size(), -1);
      EXPECT_TRUE(succeeds(gather(group, view(part), view(whole), root, CallOptions(), counts)));
      EXPECT_EQ(whole, is_root ? Floats({0, 0, 2, 2, 2}) : Floats());
      EXPECT_TRUE(succeeds(scatter(group, all_of(whole), view(back), root, CallOptions(), counts)));
      EXPECT_EQ(back, part);
    }
  });
}

TEST_P(Move, SendAndReceiveMatchInOrder) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    const std::uint32_t next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    const Floats first(7, static_cast<float>(group.rank())), second(500'000, 5), nothing;
    Handle one = send_async(group, view(first), next);
    Handle two = send_async(group, view(second), next);
    Handle three = send_async(group, view(nothing), next);
    Floats got(7), large(500'000), empty;
    EXPECT_TRUE(succeeds(receive(group, view(got), previous)));
    EXPECT_EQ(got, Floats(7, static_cast<float>(previous)));
    EXPECT_TRUE(succeeds(receive(group, view(large), previous)));
    EXPECT_EQ(large, second);
    EXPECT_TRUE(succeeds(receive(group, view(empty), previous)));
    EXPECT_TRUE(succeeds(one.wait()));
    EXPECT_TRUE(succeeds(two.wait()));
    EXPECT_TRUE(succeeds(three.wait()));
    EXPECT_EQ(send(group, view(first), group.rank()).error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_P(Move, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  constexpr std::uint32_t kWorld = 8;
  constexpr int kRounds = 1000;
  Job job(GetParam(), kWorld);
  std::vector<std::atomic<int>> reached(kWorld);
  std::atomic<int> passed_early = 0;
  job.run([&](Group& group) {
    CounterRng rng(11, group.rank());
    for (int round = 1; round <= kRounds; ++round) {
      for (std::uint64_t turns = rng.below(16) == 0 ? rng.below(20) : 0; turns > 0; --turns)
        std::this_thread::yield();
      reached[group.rank()] = round;
      if (!succeeds(barrier(group))) return;
      for (const auto& other : reached) passed_early += other < round;
    }
  });
  EXPECT_EQ(passed_early, 0);
  for (const auto& rounds : reached) EXPECT_EQ(rounds, kRounds);
}

TEST_P(Move, SubgroupsNumberTheirMembersByRank) {
  Job job(GetParam(), 4);
  job.run([&](Group& group) {
    if (group.rank() % 2 == 1) {
      auto odd = group.subgroup({3, 1, 3});
      ASSERT_TRUE(odd.ok());
      EXPECT_EQ(odd->world(), 2u);
      EXPECT_EQ(odd->rank(), group.rank() == 3 ? 1u : 0u);
      EXPECT_THAT(odd->members(), ElementsAre(1, 3));
      Floats data(3, static_cast<float>(group.rank()));
      EXPECT_TRUE(succeeds(all_reduce(*odd, view(data))));
      EXPECT_THAT(data, ::testing::Each(4.0f));
    } else {
      EXPECT_EQ(group.subgroup({1, 3}).error().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(group.subgroup({0, 2, 9}).error().code(), ErrorCode::kInvalidArgument);
    }
    // A grid of two nodes: first within the node, then across.
    const std::vector<std::uint32_t> node = {0, 0, 1, 1}, place = {0, 1, 0, 1};
    auto within = group.split(node), across = group.split(place);
    ASSERT_TRUE(within.ok() && across.ok());
    Floats data(1, static_cast<float>(1u << group.rank()));
    EXPECT_TRUE(succeeds(all_reduce(*within, view(data))));
    EXPECT_THAT(data, ElementsAre(group.rank() < 2 ? 3.0f : 12.0f));
    EXPECT_TRUE(succeeds(all_reduce(*across, view(data))));
    EXPECT_THAT(data, ElementsAre(15.0f));
  });
}

TEST_P(Move, FiftyTensorsAreInFlightInTwoSubgroupsAtOnce) {
  Job job(GetParam(), 4);
  job.run([&](Group& group) {
    auto left = group.subgroup(group.rank() < 3 ? std::vector<std::uint32_t>{0, 1, 2}
                                                : std::vector<std::uint32_t>{3});
    auto right = group.subgroup(group.rank() > 0 ? std::vector<std::uint32_t>{1, 2, 3}
                                                 : std::vector<std::uint32_t>{0});
    ASSERT_TRUE(left.ok() && right.ok());
    std::vector<Floats> tensors;
    for (std::size_t i = 0; i < 100; ++i)
      tensors.emplace_back(1 + 997 * (i % 50), static_cast<float>(i));
    const auto issue = [&](const Group& in, std::size_t first) {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < 50; ++i)
        handles.push_back(all_reduce_async(in, view(tensors[first + i])));
      for (Handle& handle : handles) EXPECT_TRUE(succeeds(handle.wait()));
    };
    std::thread other([&] { issue(*left, 0); });
    issue(*right, 50);
    other.join();
    for (std::size_t i = 0; i < 100; ++i) {
      const Group& in = i < 50 ? *left : *right;
      EXPECT_EQ(tensors[i], Floats(tensors[i].size(), static_cast<float>(i * in.world())));
    }
  });
}

// Rank 0 issues A, then B, rank 1 waits for B before it issues A: frames of A must not stand in the
// way.
TEST_P(Move, TagsMayBeIssuedInAnyOrder) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    Floats a(3 << 20, 1), b(3 << 20, 2);
    CallOptions for_a, for_b;
    for_a.tag = 1;
    for_b.tag = 2;
    if (group.rank() == 0) {
      Handle first = all_reduce_async(group, view(a), for_a);
      Handle second = all_reduce_async(group, view(b), for_b);
      EXPECT_TRUE(succeeds(first.wait()));
      EXPECT_TRUE(succeeds(second.wait()));
    } else {
      EXPECT_TRUE(succeeds(all_reduce(group, view(b), for_b)));
      EXPECT_TRUE(succeeds(all_reduce(group, view(a), for_a)));
    }
    EXPECT_EQ(a, Floats(3 << 20, 2));
    EXPECT_EQ(b, Floats(3 << 20, 4));
  });
}

Task<void> reduce_twice(Group* group, Floats* data, Status* status) {
  Handle first = all_reduce_async(*group, view(*data));
  *status = co_await first.ended();
  if (!status->ok()) co_return;
  Handle second = all_reduce_async(*group, view(*data));
  *status = co_await second.ended();
  EXPECT_TRUE(second.test());
}

TEST_P(Move, CoroutinesAwaitTheEndOnTheirOwnExecutor) {
  // They outlive the drivers, which post to them.
  std::vector<std::unique_ptr<IoThread>> threads;
  for (int rank = 0; rank < 3; ++rank) threads.push_back(std::make_unique<IoThread>("test"));
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    IoThread& thread = *threads[group.rank()];
    Floats data(100, 1);
    Status status;
    thread.wait(reduce_twice(&group, &data, &status));
    EXPECT_TRUE(succeeds(status));
    EXPECT_EQ(data, Floats(100, 9));
  });
}

TEST_P(Move, FourMebibytesPerPartDoNotBlock) {
  for (const std::uint32_t world : {2u, 4u}) {
    Job job(GetParam(), world);
    job.run([&](Group& group) {
      Floats data((std::size_t{world} << 20) + 3, 1);
      EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
      EXPECT_EQ(data, Floats(data.size(), static_cast<float>(world)));
    });
  }
}

TEST_P(Move, WrongSizesAreRefusedBeforeAnythingIsSent) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    Floats five(5), four(4);
    const auto code = [](const Status& status) { return status.error().code(); };
    EXPECT_EQ(code(all_reduce(group, all_of(five), view(four))), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(all_reduce(group, all_of(five).first(4), view(five).last(4))),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(all_gather(group, all_of(five), view(five))), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(reduce_scatter(group, all_of(five), view(five))), ErrorCode::kInvalidArgument);
    CallOptions negative = with(Reduction::kWeightedMean);
    negative.weight = -1;
    EXPECT_EQ(code(all_reduce(group, view(five), negative)), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(succeeds(barrier(group)));  // the group is as good as before
  });
}

}  // namespace
}  // namespace centroid::collective::testing
