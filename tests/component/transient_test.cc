#include <algorithm>
#include <future>
#include <map>
#include <optional>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "server/election/fence.h"
#include "server/service/job_server.h"
#include "tests/support/cluster.h"
#include "tests/support/custom_group.h"
#include "tests/support/fault_points.h"
#include "tests/support/test_shard.h"

/// What passes by itself ends no job: a lease that is late, servers that go at the same moment, an
/// end while the first worker sends its parameters.
namespace centroid::test::transient_test {
namespace {

using namespace std::chrono_literals;
using server::ServerConfig;

const TimePoint kLater = std::chrono::steady_clock::now() + std::chrono::hours(10);

ServerConfig config(const std::string& name) {
  ServerConfig c;
  c.run_dir = testing::TempDir() + "/transient-" + name;
  std::filesystem::remove_all(c.run_dir);
  c.workers.min = 2;
  c.goal.rounds = 20;
  c.leaving.when_finished = true;
  c.timeouts.drain = 5s;
  return c;
}

std::vector<WorkerSpec> two_workers() {
  std::vector<WorkerSpec> specs(2);
  specs[0].name = "a";
  specs[1].name = "b";
  return specs;
}

void expect_trained(std::future<std::vector<WorkerOutcome>> training) {
  for (const WorkerOutcome& outcome : training.get()) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    EXPECT_EQ(outcome.summary.lost, 0u);
  }
}

// ---- a lease that is late

class LateLease : public testing::Test {
 protected:
  std::future<std::vector<WorkerOutcome>> train(TestServer& leader) {
    return std::async(std::launch::async, [&leader] {
      const auto data = make_blobs(200, 8, 4, 5);
      return run_workers(two_workers(), data, leader.endpoint(), tcp);
    });
  }
  /// The lease is out once the blocking thread is to write, and is renewed when it has not.
  void be_late_while_written(TestServer& leader, server::Fence& fence, std::shared_ptr<void> held) {
    ASSERT_TRUE(leader.wait_for_wait("disk", "which is written to"));
    fence.open(1, TimePoint::min());
    held.reset();
    const auto& failed = leader.registry().counter("centroid_server_checkpoint_failures_total", "");
    ASSERT_TRUE(leader.wait_until([&](const auto&) {
      return failed.value() > 1 || (failed.value() > 0 && leader.view().state != "finished");
    }));
    fence.open(1, kLater);
  }
  /// While its first checkpoint is written, behind which all goes on.
  void expect_held_up(ServerConfig c) {
    CENTROID_CHECK(server::finish(c).ok());
    server::Fence fence(c.checkpoint.dir, "a");
    fence.open(1, kLater);
    TestServer leader(c, tcp, &fence);
    ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.state == "waiting"; }));
    auto held = leader.hold_disk();
    auto training = train(leader);
    be_late_while_written(leader, fence, std::move(held));
    expect_trained(std::move(training));
    const Status ended = leader.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    EXPECT_FALSE(leader.cluster().is_halted());
    // The journal's thread asks the fence, and posts to the server: it ends before both.
    EXPECT_FALSE(leader.cluster().context().journal.is_on());
  }
};

TEST_F(LateLease, AtTheJournalsStartHoldsItUp) {
  ServerConfig c = config("journal");
  c.journal.mode = "on";
  expect_held_up(c);
}

TEST_F(LateLease, AtTheEndHoldsUpTheLastCheckpoint) { expect_held_up(config("end")); }

TEST_F(LateLease, AtTheBeginningHoldsItUp) {
  ServerConfig c = config("begin");
  CENTROID_CHECK(server::finish(c).ok());
  server::Fence fence(c.checkpoint.dir, "a");
  fence.open(1, TimePoint::min());
  TestServer leader(c, tcp, &fence);
  auto training = train(leader);
  int looks = 0;  // so that it has tried to write
  ASSERT_TRUE(leader.wait_until([&](const auto&) { return ++looks > 2000; }));
  fence.open(1, kLater);
  expect_trained(std::move(training));
  const Status ended = leader.join();
  EXPECT_TRUE(ended.ok()) << ended.error().to_string();
}

// ---- servers that go at the same moment

/// Fewer chunks than servers: some of those hold none.
class ChangingServers : public testing::Test {
 protected:
  static constexpr std::size_t kShards = 6;

  ServerConfig few_chunks(const std::string& name) {
    ServerConfig c = config(name);
    c.servers = kShards + 1;
    c.goal.rounds = 1'000'000;
    c.timeouts.stall = 200ms;
    c.timeouts.lease = 5s;
    return c;
  }
  void start(const ServerConfig& c) {
    leader_ = std::make_unique<TestServer>(c, tcp);
    for (std::size_t i = 1; i <= kShards; ++i) add("s" + std::to_string(i));
    training_ = std::async(std::launch::async, [this] {
      const auto data = make_blobs(200, 8, 4, 5);
      return run_workers(two_workers(), data, leader_->endpoint(), tcp);
    });
    wait_more_rounds();
    ASSERT_TRUE(leader_->pause().ok());
    ASSERT_TRUE(leader_->wait_until([](const auto& view) { return view.state == "paused"; }));
    for (const auto& one : leader_->servers())
      if (one.chunks == 0) idle_.push_back(one.name);
    ASSERT_GE(idle_.size(), 2u);
  }
  void add(const std::string& name) {
    shards_[name] = std::make_unique<TestShard>(name, leader_->endpoint(),
                                                testing::TempDir() + "/transient-" + name);
  }
  void wait_more_rounds() {
    const std::uint64_t round = leader_->view().round;
    ASSERT_TRUE(leader_->wait_until(
        [&](const auto& view) { return view.round > round + 5 || view.state == "halted"; }));
    ASSERT_NE(leader_->view().state, "halted");
  }
  bool has(const std::string& name) {
    const auto servers = leader_->servers();
    return std::ranges::any_of(
        servers, [&](const auto& one) { return one.name == name && one.state != "awaited"; });
  }
  void go_on() {
    auto resumed = boost::asio::co_spawn(
        leader_->executor(), to_optional(leader_->control().resume()), boost::asio::use_future);
    ASSERT_TRUE(resumed.get()->ok());
  }
  void expect_nothing_lost() {
    EXPECT_EQ(leader_->registry().counter("centroid_server_state_lost_total", "").value(), 0);
    leader_->stop();
    expect_trained(std::move(training_));
    const Status ended = leader_->join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
  }

  std::unique_ptr<TestServer> leader_;
  std::map<std::string, std::unique_ptr<TestShard>> shards_;
  std::future<std::vector<WorkerOutcome>> training_;
  std::vector<std::string> idle_;
};

TEST_F(ChangingServers, TwoWithoutChunksMayGoAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start(few_chunks("two-go")));
  for (std::size_t i = 0; i < 2; ++i) shards_.erase(idle_[i]);
  ASSERT_TRUE(leader_->wait_until([&](const auto&) { return !has(idle_[0]) && !has(idle_[1]); }));
  go_on();
  wait_more_rounds();
  expect_nothing_lost();
}

TEST_F(ChangingServers, OneMayGoWhileAnotherComes) {
  ASSERT_NO_FATAL_FAILURE(start(few_chunks("one-comes")));
  auto held = shards_[idle_[0]]->hold();
  add("s9");
  ASSERT_TRUE(leader_->wait_until([&](const auto&) { return has("s9"); }));
  go_on();
  wait_more_rounds();
  held.reset();
  wait_more_rounds();
  EXPECT_TRUE(has("s9"));
  expect_nothing_lost();
}

// ---- the end of a job whose first worker sends its parameters

/// Does nothing but have parameters.
class Idle final : public CustomGroup {
 public:
  Idle() : CustomGroup(kElements) {}
  static constexpr std::size_t kElements = std::size_t{1} << 16;
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    on_ready(TensorId(0));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }
};

class Beginning : public testing::Test {
 protected:
  /// One worker, which sends its parameters: many chunks.
  std::future<WorkerOutcome> begin(TestServer& leader) {
    auto training = std::async(std::launch::async, [&leader] {
      const auto data = make_blobs(200, 8, 4, 5);
      auto custom = std::make_shared<CustomModel>();
      custom->manifest = {{"w", DType::kF32, {Idle::kElements}}};
      custom->make_group = [] { return std::make_unique<Idle>(); };
      custom->initialize = [](std::uint64_t, std::span<float> params) {
        std::ranges::fill(params, 0.5F);
      };
      WorkerSpec spec;
      spec.name = "a";
      spec.custom = custom;
      spec.join_timeout = 1s;
      return run_worker(spec, data, leader.endpoint(), tcp);
    });
    return training;
  }
  ServerConfig one_worker(const std::string& name) {
    ServerConfig c = config(name);
    c.workers.min = 1;
    c.transfer.chunk_bytes = 4096;
    return c;
  }
};

/// It has sent a chunk, and sends another one before it hears of the stop.
TEST_F(Beginning, AWorkerThatSendsItsParametersAtAStopEndsWell) {
  TestServer leader(one_worker("stop"), tcp);
  std::optional<HeldPoint> sent(std::in_place, "worker.parameters_sent");
  auto training = begin(leader);
  EXPECT_TRUE(sent->wait_reached());
  leader.stop();
  sent.reset();
  const WorkerOutcome outcome = training.get();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
  EXPECT_TRUE(leader.join().ok());
}

}  // namespace
}  // namespace centroid::test::transient_test
