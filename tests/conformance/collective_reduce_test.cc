#include <atomic>
#include <cmath>
#include <cstring>

#include "common/tensor/chunk_plan.h"
#include "tests/conformance/collective_numbers.h"

namespace centroid::collective::testing {
namespace {

using ::testing::Combine;
using ::testing::ElementsAre;
using ::testing::Values;

struct Reduce : ::testing::TestWithParam<std::tuple<Carrier, Algorithm>> {
  Carrier carrier() const { return std::get<0>(GetParam()); }
  CallOptions how(Reduction reduction) const { return with(reduction, std::get<1>(GetParam())); }
};
std::string reduce_name(const ::testing::TestParamInfo<Reduce::ParamType>& info) {
  const std::vector<std::string> names = {"auto",  "ring",         "doubling",
                                          "chain", "hierarchical", "halving"};
  return name_of(std::get<0>(info.param)) + "_" +
         names[static_cast<std::size_t>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(All, Reduce,
                         Combine(Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                                 Values(Algorithm::kAuto, Algorithm::kRing,
                                        Algorithm::kRecursiveDoubling, Algorithm::kChain,
                                        Algorithm::kHalvingDoubling)),
                         reduce_name);

TEST_P(Reduce, ExactNumbersOfEveryWorld) {
  for (std::uint32_t world = 1; world <= 8; ++world) {
    SCOPED_TRACE("world " + std::to_string(world));
    Job job(carrier(), world);
    job.run([&](Group& group) { expect_exact_numbers(group, how(Reduction::kSum)); });
  }
}

TEST_P(Reduce, SevenElementsOnThreeRanksHaveTheirMean) {
  Job job(carrier(), 3);
  job.run([&](Group& group) {
    Floats data = {1, 2, 3, 4, 5, 6, 7};
    if (group.rank() == 1) data = {7, 6, 5, 4, 3, 2, 1};
    if (group.rank() == 2) data = Floats(7, 0);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), how(Reduction::kMean))));
    EXPECT_THAT(data, ::testing::Each(8.0f / 3.0f));
  });
}

TEST_P(Reduce, AHundredThousandElementsAreInTheirPlace) {
  for (const std::uint32_t world : {2u, 4u}) {
    Job job(carrier(), world);
    job.run([&](Group& group) { expect_a_hundred_thousand(group, how(Reduction::kSum)); });
  }
}

TEST_P(Reduce, AWeightedMeanCountsEachRankByItsWeight) {
  for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
    Job job(carrier(), world);
    job.run([&](Group& group) {
      double sum = 0, weights = 0;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        sum += (rank + 2.0) * (10.0 * rank);
        weights += rank + 2.0;
      }
      CallOptions options = how(Reduction::kWeightedMean);
      options.weight = group.rank() + 2.0;
      Floats data(11, 10.0f * static_cast<float>(group.rank())), out(11);
      EXPECT_TRUE(succeeds(all_reduce(group, view(std::as_const(data)), view(out), options)));
      EXPECT_TRUE(succeeds(all_reduce(group, view(data), options)));
      for (std::size_t i = 0; i < data.size(); ++i) {
        EXPECT_NEAR(data[i], sum / weights, 1e-5);
        EXPECT_EQ(data[i], out[i]);
      }
    });
  }
}

// Numbers whose sum depends on the order: every rank must have the same bits, and again next time.
TEST_P(Reduce, EveryRankHasTheSameBitsEveryTime) {
  for (const std::uint32_t world : {2u, 3u, 4u, 6u}) {
    Job job(carrier(), world);
    std::vector<Floats> results(world), repeated(world);
    job.run([&](Group& group) {
      CounterRng rng(7, group.rank());
      Floats data(4099);
      for (float& x : data)
        x = static_cast<float>(std::exp(20 * rng.uniform() - 10) * rng.normal());
      results[group.rank()] = repeated[group.rank()] = data;
      EXPECT_TRUE(succeeds(all_reduce(group, view(results[group.rank()]), how(Reduction::kMean))));
      EXPECT_TRUE(succeeds(all_reduce(group, view(repeated[group.rank()]), how(Reduction::kMean))));
    });
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(), 4 * 4099), 0);
      EXPECT_EQ(std::memcmp(repeated[rank].data(), results[0].data(), 4 * 4099), 0);
    }
  }
}

struct OnEach : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, OnEach, Values(Carrier::kInProcess, Carrier::kTcp, Carrier::kShm),
                         ::testing::PrintToStringParamName());

// As the server does it: sum += weight * x in rank order, then times 1 / total weight.
TEST_P(OnEach, AChainGivesTheBitsOfAStar) {
  constexpr std::uint32_t kWorld = 4;
  constexpr std::size_t kCount = 1001;
  const auto numbers = [](std::uint32_t rank) {
    CounterRng rng(3, rank);
    Floats out(kCount);
    for (float& x : out) x = static_cast<float>(rng.normal());
    return out;
  };
  Floats star(kCount);
  double weights = 0;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    const Floats x = numbers(rank);
    const auto weight = static_cast<float>(5 + rank);
    for (std::size_t i = 0; i < kCount; ++i)
      star[i] = rank == 0 ? weight * x[i] : star[i] + weight * x[i];
    weights += weight;
  }
  const auto factor = static_cast<float>(1 / weights);
  for (float& x : star) x *= factor;
  Job job(GetParam(), kWorld);
  job.run([&](Group& group) {
    Floats data = numbers(group.rank());
    CallOptions options = with(Reduction::kWeightedMean, Algorithm::kChain);
    options.weight = 5.0 + group.rank();
    EXPECT_TRUE(succeeds(all_reduce(group, view(data), options)));
    EXPECT_EQ(std::memcmp(data.data(), star.data(), 4 * kCount), 0);
  });
}

template <class T>
void sum_whole_numbers(Group& group) {
  std::vector<T> data(9, static_cast<T>(group.rank() + 1));
  EXPECT_TRUE(succeeds(all_reduce(group, std::span<T>(data))));
  EXPECT_THAT(data, ::testing::Each(T{6}));
  EXPECT_TRUE(succeeds(all_reduce(group, std::span<T>(data), with(Reduction::kMean))));
  EXPECT_THAT(data, ::testing::Each(T{6}));
}

TEST_P(OnEach, EveryElementTypeIsReduced) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    sum_whole_numbers<std::int32_t>(group);
    sum_whole_numbers<std::int64_t>(group);
    sum_whole_numbers<double>(group);
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
      std::vector<std::uint16_t> halves(9, f16_from_f32(static_cast<float>(group.rank()) + 0.5f));
      const Elements f16(DType::kF16, std::as_writable_bytes(std::span(halves)));
      EXPECT_TRUE(succeeds(all_reduce(group, f16, with(Reduction::kSum, algorithm))));
      EXPECT_THAT(halves, ::testing::Each(f16_from_f32(4.5f)));
      std::vector<std::uint16_t> brains(9, bf16_from_f32(static_cast<float>(group.rank()) + 0.5f));
      const Elements bf16(DType::kBF16, std::as_writable_bytes(std::span(brains)));
      EXPECT_TRUE(succeeds(all_reduce(group, bf16, with(Reduction::kMean, algorithm))));
      EXPECT_THAT(brains, ::testing::Each(bf16_from_f32(1.5f)));
    }
    std::vector<std::uint8_t> bytes(4);
    const Elements u8(DType::kU8, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(all_reduce(group, u8).error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_P(OnEach, NotANumberReachesEveryRank) {
  Job job(GetParam(), 3);
  job.run([&](Group& group) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
        Floats data(6, 1);
        data[2 * group.rank()] = group.rank() == 1 ? std::nanf("") : 1;
        EXPECT_TRUE(succeeds(all_reduce(group, view(data), with(reduction, algorithm))));
        EXPECT_TRUE(std::isnan(data[2]));
        EXPECT_FALSE(std::isnan(data[3]));
      }
    }
  });
}

TEST_P(OnEach, ReduceScatterGivesEachRankItsPart) {
  Job four(GetParam(), 4);
  four.run([&](Group& group) {
    const Floats input = {1, 2, 3, 4};
    Floats part(1);
    EXPECT_TRUE(succeeds(reduce_scatter(group, view(input), view(part))));
    EXPECT_THAT(part, ElementsAre(4.0f * static_cast<float>(group.rank() + 1)));
  });
  Job two(GetParam(), 2);
  two.run([&](Group& group) {
    const bool is_first = group.rank() == 0;
    const Floats input = is_first ? Floats{1, 2, 3, 4} : Floats{5, 6, 7, 8};
    Floats part(2);
    EXPECT_TRUE(succeeds(reduce_scatter(group, view(input), view(part))));
    EXPECT_EQ(part, is_first ? Floats({6, 8}) : Floats({10, 12}));
    Floats three = {1, 2, 3};
    const auto mine = is_first ? view(three).first(2) : view(three).last(1);
    EXPECT_TRUE(succeeds(reduce_scatter(group, view(std::as_const(three)), mine)));
    EXPECT_EQ(Floats(mine.begin(), mine.end()), is_first ? Floats({2, 4}) : Floats({6}));
  });
  Job three(GetParam(), 3);
  three.run([&](Group& group) {
    const std::vector<std::uint64_t> counts = {0, 5, 2};
    const Floats input = {1, 2, 3, 4, 5, 6, 7};
    Floats part(counts[group.rank()]);
    CallOptions options = with(Reduction::kWeightedMean);
    options.weight = group.rank() + 1;
    EXPECT_TRUE(succeeds(reduce_scatter(group, view(input), view(part), options, counts)));
    const std::vector<Floats> wanted = {{}, {1, 2, 3, 4, 5}, {6, 7}};
    EXPECT_EQ(part, wanted[group.rank()]);
  });
}

// All ranks together send 2(N-1) times the bytes; each all but the part it completes and the one it
// gets last. Beyond that there are headers.
TEST_P(OnEach, BytesPerRankAreThoseOfARing) {
  for (std::uint32_t world = 2; world <= 8; ++world) {
    Job job(GetParam(), world);
    for (const std::uint64_t count : {1u << 18, 262'147u, 1009u, 7u, 1u}) {
      SCOPED_TRACE("world " + std::to_string(world) + " count " + std::to_string(count));
      std::atomic<std::uint64_t> planned = 0;
      job.run([&](Group& group) {
        Floats data(count, 1);
        const std::uint32_t rank = group.rank();
        const auto before = group.traffic();
        EXPECT_TRUE(
            succeeds(all_reduce(group, view(data), with(Reduction::kSum, Algorithm::kRing))));
        const auto after = group.traffic();
        const std::uint64_t payload = 4 * (2 * count - part_of(count, world, rank).size() -
                                           part_of(count, world, (rank + 1) % world).size());
        planned += payload;
        const std::uint64_t sent = after.bytes_out - before.bytes_out;
        const std::uint64_t frames = after.frames_out - before.frames_out;
        EXPECT_GE(sent, payload);
        EXPECT_LE(sent, payload + 96 * frames);
        EXPECT_LE(frames, 2 * (world - 1) * 5 + 4);
      });
      EXPECT_EQ(planned, 2 * (world - 1) * count * 4);
    }
  }
}

// As few as a ring's: all but the own part, there and back.
TEST_P(OnEach, BytesPerRankAreTheSameWhenTheyHalveAndDouble) {
  for (const std::uint32_t world : {2u, 4u, 8u}) {
    Job job(GetParam(), world);
    for (const std::uint64_t count : {1u << 18, 262'147u, 7u}) {
      SCOPED_TRACE("world " + std::to_string(world) + " count " + std::to_string(count));
      job.run([&](Group& group) {
        Floats data(count, 1);
        const auto before = group.traffic();
        const auto how = with(Reduction::kSum, Algorithm::kHalvingDoubling);
        EXPECT_TRUE(succeeds(all_reduce(group, view(data), how)));
        const auto after = group.traffic();
        const std::uint64_t payload = 8 * (count - part_of(count, world, group.rank()).size());
        const std::uint64_t sent = after.bytes_out - before.bytes_out;
        EXPECT_GE(sent + 4 * world, payload);  // parts differ by one element
        EXPECT_LE(sent, payload + 4 * world + 96 * (after.frames_out - before.frames_out));
      });
    }
  }
}

// Random sizes, types of call and worlds against sums made in one place.
TEST_P(OnEach, RandomSizesMatchAPlainSum) {
  const std::uint64_t seed = 20260;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng outer(seed);
  for (int round = 0; round < 6; ++round) {
    const auto world = static_cast<std::uint32_t>(2 + outer.below(7));
    Job job(GetParam(), world);
    job.run([&](Group& group) {
      CounterRng rng(seed, 100 + static_cast<std::uint64_t>(round));
      for (int call = 0; call < 12; ++call) {
        const std::size_t count = rng.below(rng.below(4) == 0 ? 70'000 : 50);
        const auto algorithm = static_cast<Algorithm>(rng.below(6));
        const bool is_in_place = rng.below(2) == 0;
        SCOPED_TRACE("world " + std::to_string(world) + " count " + std::to_string(count) +
                     " algorithm " + std::to_string(static_cast<int>(algorithm)));
        Floats input(count), output(count);
        for (std::size_t i = 0; i < count; ++i)
          input[i] = static_cast<float>((i * (group.rank() + 1)) % 251);
        Floats wanted(count);
        for (std::uint32_t rank = 0; rank < world; ++rank)
          for (std::size_t i = 0; i < count; ++i)
            wanted[i] += static_cast<float>((i * (rank + 1)) % 251);
        const CallOptions options = with(Reduction::kSum, algorithm);
        if (is_in_place) {
          EXPECT_TRUE(succeeds(all_reduce(group, view(input), options)));
          EXPECT_EQ(input, wanted);
        } else {
          EXPECT_TRUE(
              succeeds(all_reduce(group, view(std::as_const(input)), view(output), options)));
          EXPECT_EQ(output, wanted);
        }
      }
    });
  }
}

}  // namespace
}  // namespace centroid::collective::testing
