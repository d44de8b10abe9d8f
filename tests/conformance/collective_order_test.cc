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

/// A wire that takes 20 ms for a long frame.
class SlowConnection final : public transport::Connection {
 public:
  explicit SlowConnection(std::unique_ptr<Connection> inner) : inner_(std::move(inner)) {}
  Task<Result<transport::InFrame>> read_header() override { return inner_->read_header(); }
  Task<Status> read_payload(MutableBytes into) override { return inner_->read_payload(into); }
  Task<Result<Bytes>> read_piece(MutableBytes scratch) override {
    return inner_->read_piece(scratch);
  }
  Task<Status> skip_payload() override { return inner_->skip_payload(); }
  Task<Status> write(const transport::OutFrame& frame) override {
    if (frame.payload.size() > 1000) (void)co_await sleep_until(now() + 20ms);
    co_return co_await inner_->write(frame);
  }
  Task<Result<bool>> flush() override { return inner_->flush(); }
  void close(Error cause) noexcept override { inner_->close(std::move(cause)); }
  void close_with(const transport::OutFrame& last, Error cause) noexcept override {
    inner_->close_with(last, std::move(cause));
  }
  void set_budget(std::shared_ptr<transport::ByteBudget> budget) override {
    inner_->set_budget(std::move(budget));
  }
  void set_limits(const transport::FrameLimits& limits) override { inner_->set_limits(limits); }
  transport::FrameLimits limits() const override { return inner_->limits(); }
  std::string peer() const override { return inner_->peer(); }
  TimePoint last_received() const override { return inner_->last_received(); }
  transport::TrafficCounters traffic() const override { return inner_->traffic(); }
  Executor executor() const override { return inner_->executor(); }

 private:
  const std::unique_ptr<Connection> inner_;
};

/// Calls to these hosts are slow.
class SlowTransport final : public transport::Transport {
 public:
  SlowTransport(std::unique_ptr<Transport> inner, std::set<std::string> slow)
      : inner_(std::move(inner)), slow_(std::move(slow)) {}
  Task<Result<std::unique_ptr<transport::Connection>>> connect(transport::Endpoint endpoint,
                                                               Deadline deadline) override {
    auto made = co_await inner_->connect(endpoint, deadline);
    if (made.ok() && slow_.contains(endpoint.host))
      *made = std::make_unique<SlowConnection>(std::move(*made));
    co_return made;
  }
  Result<std::unique_ptr<transport::Listener>> listen(
      const transport::Endpoint& endpoint) override {
    return inner_->listen(endpoint);
  }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::set<std::string> slow_;
};

// Ranks 1 and 2 are slow, whoever calls.
TEST(RingOrder, TheMeasuredRingAvoidsTheSlowPairOnAllRanks) {
  const auto plain = inprocess_factory(transport::make_inprocess_hub());
  const auto wire_of = [=](std::uint32_t rank) {
    std::set<std::string> slow;
    if (rank == 1) slow = {"rank2"};
    if (rank == 2) slow = {"rank1"};
    return Wire{
        [=](Executor executor) { return std::make_unique<SlowTransport>(plain(executor), slow); }};
  };
  Job job(Carrier::kInProcess, 4, wire_of);
  std::vector<Order> rings(4);
  job.run([&](Group& group) {
    const auto ordered = order_by_bandwidth(group);
    ASSERT_TRUE(ordered.ok()) << ordered.error().to_string();
    rings[group.rank()].assign(ordered->ring().begin(), ordered->ring().end());
  });
  for (const Order& ring : rings) EXPECT_EQ(ring, rings[0]);
  ASSERT_EQ(rings[0].size(), 4u) << "not the order of ranks";
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NE(rings[0][i] + rings[0][(i + 1) % 4], 3u) << "1 is opposite to 2, so 0 is to 3";
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
