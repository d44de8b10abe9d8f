#include <numeric>
#include <random>
#include <set>

#include "tests/conformance/collective_numbers.h"
#include "transport/collective/ring_order.h"

namespace centroid::collective::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Order = std::vector<std::uint32_t>;

Bandwidths all_equal(std::uint32_t world, double rate = 100) {
  Bandwidths out;
  out.world = world;
  out.rates.assign(std::size_t{world} * world, rate);
  return out;
}
void set(Bandwidths& bandwidths, std::uint32_t a, std::uint32_t b, double rate) {
  bandwidths.rates[a * bandwidths.world + b] = bandwidths.rates[b * bandwidths.world + a] = rate;
}
double slowest(const Bandwidths& bandwidths, const Order& order) {
  double out = bandwidths.between(order.back(), order.front());
  for (std::size_t i = 0; i + 1 < order.size(); ++i)
    out = std::min(out, bandwidths.between(order[i], order[i + 1]));
  return out;
}

TEST(RingOrder, AvoidsASlowPair) {
  Bandwidths bandwidths = all_equal(4);
  set(bandwidths, 1, 2, 10);
  const Order order = best_ring(bandwidths);
  EXPECT_EQ(order.front(), 0u);
  EXPECT_EQ(slowest(bandwidths, order), 100);
}

TEST(RingOrder, CrossesBetweenTwoSitesAsSeldomAsItCan) {
  Bandwidths bandwidths = all_equal(6, 5);  // even ranks here, odd ones there
  for (std::uint32_t a = 0; a < 6; ++a)
    for (std::uint32_t b = a + 2; b < 6; b += 2) set(bandwidths, a, b, 100);
  for (std::uint32_t b = 1; b < 6; b += 2) set(bandwidths, 0, b, 6);  // a better way across
  const Order order = best_ring(bandwidths);
  int crossings = 0;
  for (std::size_t i = 0; i < 6; ++i) crossings += (order[i] + order[(i + 1) % 6]) % 2 != 0;
  EXPECT_EQ(crossings, 6) << "equally slow crossings: the ranks' own order stays";
  set(bandwidths, 2, 3, 50);
  set(bandwidths, 4, 5, 50);
  const Order better = best_ring(bandwidths);
  EXPECT_EQ(slowest(bandwidths, better), 50);
}

TEST(RingOrder, StaysWhereADifferenceIsNoise) {
  Bandwidths bandwidths = all_equal(5);
  set(bandwidths, 0, 1, 95);
  EXPECT_THAT(best_ring(bandwidths), ElementsAre(0, 1, 2, 3, 4));
}

TEST(RingOrder, LargeWorldsAreImprovedAndEveryRankStaysInIt) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng random(seed);
  const std::uint32_t world = 24;
  Bandwidths bandwidths = all_equal(world, 1);
  Order hidden(world);
  std::iota(hidden.begin(), hidden.end(), 0u);
  for (std::uint32_t i = world - 1; i > 0; --i)
    std::swap(hidden[i], hidden[random.next() % (i + 1)]);
  for (std::uint32_t a = 0; a < world; ++a)
    for (std::uint32_t b = 0; b < a; ++b) set(bandwidths, a, b, 1 + double(random.next() % 50));
  for (std::uint32_t i = 0; i < world; ++i)
    set(bandwidths, hidden[i], hidden[(i + 1) % world], 100 + double(random.next() % 50));
  const Order order = best_ring(bandwidths);
  EXPECT_EQ(std::set<std::uint32_t>(order.begin(), order.end()).size(), world);
  Order ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0u);
  EXPECT_GE(slowest(bandwidths, order), slowest(bandwidths, ranks));
  EXPECT_EQ(best_ring(bandwidths), order);
}

TEST(RingOrder, SumsAreRightInEveryOrder) {
  Job job(Carrier::kInProcess, 4);
  Order order = {0, 1, 2, 3};
  do {
    job.run([&](Group& group) {
      const auto ordered = group.with_ring(order);
      ASSERT_TRUE(ordered.ok());
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        Floats data(13);
        std::iota(data.begin(), data.end(), static_cast<float>(group.rank()));
        CallOptions options;
        options.reduction = reduction;
        options.algorithm = Algorithm::kRing;
        ASSERT_TRUE(succeeds(all_reduce(*ordered, view(data), options)));
        for (std::size_t i = 0; i < data.size(); ++i) {
          const float sum = 4 * static_cast<float>(i) + 6;
          EXPECT_EQ(data[i], reduction == Reduction::kSum ? sum : sum / 4);
        }
      }
      Floats weighed(100, static_cast<float>(group.rank()));
      CallOptions options;
      options.reduction = Reduction::kWeightedMean;
      options.algorithm = Algorithm::kRing;
      options.weight = static_cast<double>(group.rank());
      ASSERT_TRUE(succeeds(all_reduce(*ordered, view(weighed), options)));
      EXPECT_THAT(weighed, ::testing::Each(::testing::FloatEq(14.0f / 6.0f)));
    });
  } while (std::next_permutation(order.begin() + 1, order.end()));
}

/// The sum that a ring in this order promises (docs/explanation/rounds.md): part p begins with the
/// place behind p and ends with p.
Floats sum_in_order(const std::vector<Floats>& of_ranks, const Order& order) {
  const std::size_t world = order.size(), count = of_ranks[0].size();
  Floats out(count);
  std::size_t at = 0;
  for (std::size_t part = 0; part < world; ++part) {
    const std::size_t end = at + count / world + (part < count % world ? 1 : 0);
    for (; at < end; ++at) {
      float sum = of_ranks[order[(part + 1) % world]][at];
      for (std::size_t i = 2; i <= world; ++i) sum += of_ranks[order[(part + i) % world]][at];
      out[at] = sum;
    }
  }
  return out;
}

TEST(RingOrder, TheBitsAreThoseOfTheOrder) {
  constexpr std::uint32_t kWorld = 5;
  constexpr std::size_t kCount = 1003;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng random(seed);
  std::vector<Floats> numbers(kWorld, Floats(kCount));
  for (Floats& of_rank : numbers)
    for (float& x : of_rank)
      x = std::ldexp(static_cast<float>(random.next() % 1000), int(random.next() % 24) - 12);
  Job job(Carrier::kInProcess, kWorld);
  const Floats by_rank = sum_in_order(numbers, {0, 1, 2, 3, 4});
  for (const Order& order : {Order{0, 1, 2, 3, 4}, Order{0, 3, 1, 4, 2}, Order{0, 2, 4, 3, 1}}) {
    const Floats promised = sum_in_order(numbers, order);
    EXPECT_EQ(promised == by_rank, order[1] == 1) << "else the test could not tell them apart";
    job.run([&](Group& group) {
      const auto ordered = group.with_ring(order);
      ASSERT_TRUE(ordered.ok());
      Floats data = numbers[group.rank()];
      ASSERT_TRUE(
          succeeds(all_reduce(*ordered, view(data), with(Reduction::kSum, Algorithm::kRing))));
      EXPECT_EQ(data, promised);
    });
  }
}

TEST(RingOrder, WhatIsNoOrderOfTheRanksIsRefused) {
  Job job(Carrier::kInProcess, 3);
  job.run([&](Group& group) {
    for (const Order& wrong : {Order{0, 1}, Order{0, 1, 1}, Order{1, 2, 3}, Order{}}) {
      const auto ordered = group.with_ring(wrong);
      ASSERT_FALSE(ordered.ok());
      EXPECT_THAT(ordered.error().message(), HasSubstr("not an order of the ranks 0 to 2"));
    }
  });
}

TEST(RingOrder, EveryPairIsMeasuredAndEveryRankKnowsTheSame) {
  for (const Carrier carrier : {Carrier::kInProcess, Carrier::kTcp}) {
    for (const std::uint32_t world : {1u, 2u, 3u, 4u, 5u, 7u}) {
      SCOPED_TRACE(name_of(carrier) + " world " + std::to_string(world));
      Job job(carrier, world);
      std::vector<std::vector<double>> seen(world);
      std::vector<Order> rings(world);
      job.run([&](Group& group) {
        const auto measured = measure_bandwidths(group, 4096);
        ASSERT_TRUE(measured.ok()) << measured.error().to_string();
        seen[group.rank()] = measured->rates;
        const auto ordered = order_by_bandwidth(group);
        ASSERT_TRUE(ordered.ok()) << ordered.error().to_string();
        rings[group.rank()].assign(ordered->ring().begin(), ordered->ring().end());
        Floats data(5, 1);
        EXPECT_TRUE(succeeds(all_reduce(*ordered, view(data), CallOptions())));
        EXPECT_THAT(data, ::testing::Each(static_cast<float>(world)));
      });
      for (std::uint32_t a = 0; a < world; ++a) {
        EXPECT_EQ(seen[a], seen[0]);
        EXPECT_EQ(rings[a], rings[0]);
        for (std::uint32_t b = 0; b < world; ++b)
          EXPECT_EQ(seen[0][a * world + b] > 0, a != b) << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace centroid::collective::testing
