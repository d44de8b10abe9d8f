#include <atomic>

#include "tests/conformance/collective_fixture.h"
#include "transport/collective/exchange.h"

namespace centroid::collective::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Values;

struct Exchange : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Exchange, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

/// The byte at `at` of what `from` sends to `to`.
std::byte byte_of(std::uint64_t from, std::uint64_t to, std::uint64_t at) {
  return static_cast<std::byte>(mix64(from * 64 + to, at / 8) >> (at % 8 * 8));
}

/// One rank's side of an exchange in which rank i sends length(i, j) bytes to j, at most most(j).
using Length = std::function<std::uint64_t(std::uint64_t from, std::uint64_t to)>;
using Most = std::function<std::uint64_t(std::uint64_t to)>;
struct Side {
  Side(std::uint32_t own, std::uint32_t world, Length length_of, const Most& most_of)
      : rank(own), length(std::move(length_of)), lengths(world) {
    std::uint64_t sent = 0, room = 0;
    for (std::uint32_t peer = 0; peer < world; ++peer) {
      out.push_back({sent, peer == rank ? 0 : length(rank, peer), most_of(peer)});
      in.push_back({room, 0, most_of(rank)});
      if (peer == rank) continue;
      sent += out.back().bytes;
      room += most_of(rank);
    }
    input.resize(sent);
    output.resize(room, std::byte{0xEE});
    for (std::uint32_t peer = 0; peer < world; ++peer)
      for (std::uint64_t i = 0; i < out[peer].bytes; ++i)
        input[out[peer].begin + i] = byte_of(rank, peer, i);
  }

  void check() const {
    for (std::uint32_t peer = 0; peer < in.size(); ++peer) {
      if (peer == rank) continue;
      ASSERT_EQ(lengths[peer], length(peer, rank)) << "from " << peer << " to " << rank;
      std::uint64_t wrong = 0;
      for (std::uint64_t i = 0; i < lengths[peer]; ++i)
        wrong += output[in[peer].begin + i] == byte_of(peer, rank, i) ? 0 : 1;
      for (std::uint64_t i = lengths[peer]; i < in[peer].most; ++i)
        wrong += output[in[peer].begin + i] == std::byte{0xEE} ? 0 : 1;
      EXPECT_EQ(wrong, 0u) << "from " << peer << " to " << rank;
    }
  }

  std::uint32_t rank;
  Length length;
  std::vector<std::uint64_t> lengths;
  std::vector<Parcel> out, in;
  std::vector<std::byte> input, output;
};

TEST_P(Exchange, ParcelsArriveWithTheirLengths) {
  constexpr std::uint64_t kSegment = kSegmentBytes;
  const std::vector<std::uint64_t> lengths = {
      0, 1, 13, kSegment - 1, kSegment, 5000, kSegment + 1, 2 * kSegment, kSegment / 3};
  for (std::uint32_t world = 1; world <= 5; ++world) {
    SCOPED_TRACE("world " + std::to_string(world));
    Job job(GetParam(), world);
    for (std::uint64_t turn = 0; turn < 3; ++turn) {
      const auto length = [&](std::uint64_t from, std::uint64_t to) {
        return lengths[(from * world + to + turn * 4) % lengths.size()];
      };
      // The tightest bound of a receiver: its longest parcel is as long as it may be.
      const auto most = [&](std::uint64_t to) {
        std::uint64_t longest = 0;
        for (std::uint32_t from = 0; from < world; ++from)
          if (from != to) longest = std::max(longest, length(from, to));
        return longest + (turn == 1 ? kSegment : 0);
      };
      job.run([&](Group& group) {
        Side side(group.rank(), world, length, most);
        EXPECT_TRUE(
            succeeds(exchange(group, side.input, side.out, side.output, side.in, side.lengths)));
        side.check();
      });
    }
  }
}

TEST_P(Exchange, ManyAtOnceMayEndInAnyOrderAndSaySo) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    const auto most = [](std::uint64_t) { return 300'000; };
    std::atomic<int> told = 0;
    const auto length_of = [](std::uint64_t turn) {
      return [turn](std::uint64_t from, std::uint64_t to) {
        return (from * 7 + to * 3 + turn * 5) % 11 * 27'000;
      };
    };
    std::vector<std::unique_ptr<Side>> sides;
    std::vector<Handle> handles;
    for (std::uint64_t i = 0; i < 12; ++i) {
      // A tag each: the ranks need not begin them in the same order.
      const std::uint64_t turn = (i + 5 * group.rank()) % 12;
      sides.push_back(std::make_unique<Side>(group.rank(), 3, length_of(turn), most));
      Side& side = *sides.back();
      CallOptions options;
      options.tag = turn;
      options.on_end = [&told] { ++told; };
      handles.push_back(
          exchange_async(group, side.input, side.out, side.output, side.in, side.lengths, options));
    }
    for (Handle& handle : handles) EXPECT_TRUE(succeeds(handle.wait()));
    EXPECT_EQ(told, 12);
    for (const auto& side : sides) side->check();
  });
}

TEST_P(Exchange, MoreThanTheReceiverAllowsEndsItEverywhere) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    const auto length = [](std::uint64_t, std::uint64_t) { return 100; };
    const auto most = [](std::uint64_t) { return 100; };
    Side side(group.rank(), 3, length, most);
    if (group.rank() == 1)
      for (Parcel& parcel : side.in) parcel.most = 99;
    Status status = exchange(group, side.input, side.out, side.output, side.in, side.lengths);
    EXPECT_FALSE(status.ok() && group.rank() == 1);
    if (status.ok()) status = barrier(group);  // who had everything learns it here
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().to_string(), HasSubstr("at most 99 bytes"));
  });
}

TEST_P(Exchange, ParcelsOutsideTheirMemoryAreRefusedBeforeAnythingIsSent) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    std::vector<std::byte> memory(10), place(10);
    std::vector<std::uint64_t> lengths(2);
    const auto refused = [&](std::vector<Parcel> out, std::vector<Parcel> in) {
      const Status status = exchange(group, memory, out, place, in, lengths);
      return status.ok() ? "not refused" : status.error().to_string();
    };
    const std::uint32_t peer = 1 - group.rank();
    std::vector<Parcel> good(2, Parcel{0, 10, 10}), bad = good;
    EXPECT_THAT(refused({{}}, good), HasSubstr("1 sent parcels for a group of 2"));
    bad[peer] = {0, 11, 10};
    EXPECT_THAT(refused(bad, good), HasSubstr("has 11 bytes, at most 10 were agreed"));
    bad[peer] = {1, 10, 10};
    EXPECT_THAT(refused(bad, good), HasSubstr("ends beyond its memory of 10 bytes"));
    EXPECT_THAT(refused(good, bad), HasSubstr("ends beyond its memory of 10 bytes"));
    bad[peer] = {~std::uint64_t{0}, 0, 1};
    EXPECT_THAT(refused(good, bad), HasSubstr("ends beyond its memory"));
    EXPECT_TRUE(succeeds(exchange(group, memory, good, place, good, lengths)));
  });
}

TEST_P(Exchange, ARankThatGoesEndsItWithItsName) {
  Job job(GetParam(), 3);
  job.run([](Group& group) { EXPECT_TRUE(succeeds(barrier(group))); });
  job.run([&](Group& group) {
    if (group.rank() == 2) return job.leave(2);
    const auto length = [](std::uint64_t, std::uint64_t) { return 100; };
    const auto most = [](std::uint64_t) { return 200; };
    Side side(group.rank(), 3, length, most);
    const Status status = exchange(group, side.input, side.out, side.output, side.in, side.lengths);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().to_string(), HasSubstr("rank 2"));
  });
}

TEST_P(Exchange, OnEndIsToldByOtherOperationsToo) {
  Job job(GetParam(), 2);
  job.run([&](Group& group) {
    std::atomic<int> told = 0;
    CallOptions options = with(Reduction::kWeightedMean);
    options.weight = 3;
    options.on_end = [&told] { ++told; };
    Floats values = {1, 2, 3}, nothing;
    EXPECT_TRUE(succeeds(all_reduce_async(group, view(values), options).wait()));
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(succeeds(broadcast_async(group, view(nothing), 0, options).wait()));
    EXPECT_EQ(told, 2);
  });
}

}  // namespace
}  // namespace centroid::collective::testing
