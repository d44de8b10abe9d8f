// What depends on how long frames take: in virtual time, so that a busy machine changes nothing.

#include <set>

#include "common/base/thread.h"
#include "tests/conformance/collective_fixture.h"
#include "tests/simulation/world.h"
#include "transport/collective/ring_order.h"

namespace centroid::collective::testing::collective_time_test {
namespace {

using simulation::World;
using TransportOf = std::function<Mesh::TransportFactory(std::uint32_t rank)>;

/// Ranks as threads of a simulated process.
class Ranks {
 public:
  Ranks(std::uint32_t world, const TransportOf& transport_of) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      transport::Endpoint endpoint;
      endpoint.host = "rank" + std::to_string(rank);
      auto mesh = Mesh::open(transport_of(rank), endpoint);
      EXPECT_TRUE(mesh.ok());
      roster_.endpoints.push_back((*mesh)->endpoint());
      meshes_.push_back(std::move(*mesh));
    }
  }
  /// `body` for all ranks of the next generation, at once.
  void run(const std::function<void(Group&)>& body) {
    ++roster_.generation;
    std::vector<Thread> threads;
    for (std::uint32_t rank = 0; rank < meshes_.size(); ++rank) {
      threads.emplace_back("rank", [&, rank] {
        Roster mine = roster_;
        mine.rank = rank;
        auto group = meshes_[rank]->join(mine);
        ASSERT_TRUE(group.ok()) << group.error().to_string();
        body(*group);
      });
    }
  }

 private:
  Roster roster_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

constexpr std::uint64_t kNotYet = std::uint64_t{1} << 40;
constexpr std::size_t kCount = 1 << 20;

/// All-reduces of two ranks within 100 ms, of which the second stands still for `delay` at one
/// operation of its transport; how many of the next ones went well.
int stand_still(std::uint64_t operation, std::chrono::milliseconds delay) {
  transport::FaultPlan plan;
  plan.action = transport::FaultPlan::Action::kDelay;
  plan.delay = delay;
  plan.at_operation = operation;
  *plan.operations = kNotYet;
  const auto plain = inprocess_factory(transport::make_inprocess_hub());
  Ranks ranks(2, [&](std::uint32_t rank) -> Mesh::TransportFactory {
    if (rank == 0) return plain;
    return [=](Executor executor) { return transport::make_faulty(plain(executor), plan); };
  });
  int worked = 0;
  ranks.run([&](Group& group) {
    auto other = group.subgroup({0, 1});
    ASSERT_TRUE(other.ok());
    EXPECT_TRUE(succeeds(barrier(group)));
    if (group.rank() == 1) *plan.operations = 0;
    Floats data(kCount, 1);
    CallOptions options;
    options.timeout = 100ms;
    const Status status = all_reduce(group, view(data), options);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    Floats small(1000, 1 + static_cast<float>(group.rank()));
    const Status next = all_reduce(*other, view(small));
    if (next.ok()) {
      EXPECT_EQ(small, Floats(1000, 3));
      ++worked;
    } else {
      EXPECT_THAT(next.error().code(),
                  ::testing::AnyOf(ErrorCode::kAborted, ErrorCode::kUnavailable));
    }
  });
  *plan.operations = kNotYet;
  ranks.run([&](Group& group) {
    Floats data(kCount, 1);
    EXPECT_TRUE(succeeds(all_reduce(group, view(data))));
    EXPECT_EQ(data, Floats(kCount, 2));
  });
  return worked;
}

// Rank 1 stands still in the middle of a message, shorter or longer than a frame under way may take
// after the deadline: the operation ends with an error, and what comes later on the same connection
// is right or refused, never out of step.
TEST(Timeout, InTheMiddleOfAMessageLeavesTheConnectionInStepOrClosed) {
  for (const std::uint64_t seed : {1u, 2u}) {
    for (const std::uint64_t operation : {2u, 4u}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", operation " + std::to_string(operation));
      World world(seed);
      world.run([&] {
        EXPECT_EQ(stand_still(operation, 150ms), 2);
        EXPECT_EQ(stand_still(operation, 500ms), 0);
      });
    }
    World world(seed);
    world.run([] { EXPECT_EQ(stand_still(5, 500ms), 2) << "between two messages"; });
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
    if (frame.payload.size() > 1000) (void)co_await sleep_until(centroid::now() + 20ms);
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

// The connection of ranks 1 and 2 is slow in both directions.
TEST(RingOrder, TheMeasuredRingAvoidsTheSlowPairOnAllRanks) {
  World world(1);
  world.run([] {
    const auto plain = inprocess_factory(transport::make_inprocess_hub());
    Ranks ranks(4, [&](std::uint32_t rank) -> Mesh::TransportFactory {
      std::set<std::string> slow;
      if (rank == 1) slow = {"rank2"};
      if (rank == 2) slow = {"rank1"};
      return
          [=](Executor executor) { return std::make_unique<SlowTransport>(plain(executor), slow); };
    });
    std::vector<std::vector<std::uint32_t>> rings(4);
    ranks.run([&](Group& group) {
      const auto ordered = order_by_bandwidth(group);
      ASSERT_TRUE(ordered.ok()) << ordered.error().to_string();
      rings[group.rank()].assign(ordered->ring().begin(), ordered->ring().end());
    });
    for (const auto& ring : rings) EXPECT_EQ(ring, rings[0]);
    ASSERT_EQ(rings[0].size(), 4u) << "not the order of ranks";
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NE(rings[0][i] + rings[0][(i + 1) % 4], 3u) << "1 is opposite to 2, so 0 is to 3";
  });
}

}  // namespace
}  // namespace centroid::collective::testing::collective_time_test
