#include <cstdio>
#include <cstdlib>
#include <future>
#include <limits>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/custom_group.h"
#include "tests/support/test_shard.h"

/// Several servers one of which waits for a disk: nobody is given up for it, somebody is told.
namespace centroid::test::servers_waits_test {
namespace {

using namespace std::chrono_literals;
using server::ServerConfig;

ServerConfig config(const std::string& name) {
  ServerConfig c;
  c.run_dir = testing::TempDir() + "/servers-waits-" + name;
  std::filesystem::remove_all(c.run_dir);
  c.workers.min = 2;
  c.goal.rounds = 300;
  c.leaving.when_finished = true;
  c.transfer.chunk_bytes = 256;
  c.servers = 2;
  c.optimizer.name = "momentum";
  return c;
}

std::vector<WorkerSpec> two_workers() {
  std::vector<WorkerSpec> specs(2);
  specs[0].name = "a";
  specs[1].name = "b";
  for (WorkerSpec& spec : specs) spec.join_timeout = 3s;
  return specs;
}

/// A round of it has no room beside a checkpoint that is not read.
void keep_no_copies(server::ShardOptions& options) { options.snapshot_budget = 64; }

TEST(ServersWaits, AServerThatWaitsForACheckpointIsNotGivenUp) {
  ServerConfig c = config("checkpoint");
  c.timeouts.stall = 100ms;
  c.timeouts.lease = 2s;
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", 0, false, keep_no_copies);
  auto training = std::async(
      std::launch::async, [&] { return run_workers(two_workers(), data, leader.endpoint(), tcp); });
  ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.round > 5; }));
  auto held = leader.hold_disk();
  auto written = std::async(std::launch::async, [&] { return leader.checkpoint(); });
  EXPECT_TRUE(leader.wait_for_wait("s1", "until the leader has written a checkpoint"));
  EXPECT_TRUE(leader.wait_until([&](const auto&) {  // longer than an answer may take otherwise
    for (const server::WaitView& wait : leader.waits())
      if (wait.waits_for.find("s1") != std::string::npos && wait.seconds > 5) return true;
    return leader.registry().counter("centroid_server_state_lost_total", "").value() > 0;
  }));
  held.reset();
  const auto checkpoint = written.get();
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  for (const WorkerOutcome& outcome : training.get()) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    EXPECT_EQ(outcome.summary.lost, 0u);
  }
  EXPECT_TRUE(leader.join().ok());
  EXPECT_TRUE(shard.join().ok());
  EXPECT_EQ(leader.registry().counter("centroid_server_state_lost_total", "").value(), 0);
}

TEST(ServersWaits, AServerWhoseLeaderGoesWhileItWaitsEnds) {
  const ServerConfig c = config("leader");
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", 0, false, [](server::ShardOptions& options) {
    keep_no_copies(options);
    options.drain_timeout = 0ms;
  });
  auto training = std::async(
      std::launch::async, [&] { return run_workers(two_workers(), data, leader.endpoint(), tcp); });
  ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.round > 5; }));
  auto held = leader.hold_disk();
  auto written = std::async(std::launch::async, [&] { return leader.checkpoint(); });
  EXPECT_TRUE(leader.wait_for_wait("s1", "until the leader has written a checkpoint"));
  auto ended = std::async(std::launch::async, [&] { return shard.stop(); });
  if (ended.wait_for(120s) != std::future_status::ready) {
    std::fputs("the shard server's thread spins: it cannot be joined\n", stderr);
    std::_Exit(1);
  }
  EXPECT_TRUE(ended.get().ok());
  leader.stop();
  held.reset();
  (void)written.get();
  (void)training.get();
  (void)leader.join();
}

/// Without a checkpoint there is no model then, until a worker brings one.
TEST(ServersWaits, ALeaderWithoutServerCheckpointAndWorkersLives) {
  ServerConfig c = config("nothing");
  c.timeouts.servers = 0ms;
  c.timeouts.lease = 400ms;
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", 0, false,
                  [](server::ShardOptions& options) { options.drain_timeout = 0ms; });
  auto specs = two_workers();
  for (WorkerSpec& spec : specs) spec.join_timeout = 250ms;  // neither comes back
  auto training = std::async(std::launch::async,
                             [&] { return run_workers(specs, data, leader.endpoint(), tcp); });
  const std::shared_ptr<void> over(nullptr, [&](void*) { leader.stop(); });  // also when one fails
  ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.round > 5; }));
  EXPECT_TRUE(shard.stop().ok());
  ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.version == 0; }));
  (void)training.get();
  const double uptime = leader.view().uptime_seconds;  // leases are looked at many times in that
  EXPECT_TRUE(
      leader.wait_until([&](const auto& view) { return view.uptime_seconds > uptime + 1; }));
  leader.stop();
  (void)leader.join();
}

/// A call that nobody waits for any more does not take its checkpoint with it.
TEST(ServersWaits, ACallThatIsGivenUpLeavesCheckpointsPossible) {
  const ServerConfig c = config("call");
  const auto data = make_blobs(200, 8, 4, 5);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint(), "", 0, false, keep_no_copies);
  auto training = std::async(
      std::launch::async, [&] { return run_workers(two_workers(), data, leader.endpoint(), tcp); });
  ASSERT_TRUE(leader.wait_until([](const auto& view) { return view.round > 5; }));
  auto held = leader.hold_disk();
  boost::asio::cancellation_signal call;
  auto asked = boost::asio::co_spawn(
      leader.executor(), to_optional(leader.control().make_checkpoint()),
      boost::asio::bind_cancellation_slot(call.slot(), boost::asio::use_future));
  EXPECT_TRUE(leader.wait_for_wait("s1", "until the leader has written a checkpoint"));
  boost::asio::post(leader.executor(),
                    [&] { call.emit(boost::asio::cancellation_type::terminal); });
  (void)asked.wait_for(1s);
  held.reset();
  asked.wait();
  auto again = std::async(std::launch::async, [&] { return leader.checkpoint(); });
  if (again.wait_for(120s) != std::future_status::ready) {
    std::fputs("no checkpoint is possible any more\n", stderr);
    std::_Exit(1);
  }
  const auto written = again.get();
  EXPECT_TRUE(written.ok()) << written.error().to_string();
  for (const WorkerOutcome& outcome : training.get()) EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(leader.join().ok());
  EXPECT_TRUE(shard.join().ok());
}

/// Two tensors, of which the first lies on the shard server. In one of its steps no number of that
/// is finite: all that goes to the leader is sent, and nothing of the rest.
constexpr std::size_t kTensor = 512;

class OnceBad final : public CustomGroup {
 public:
  explicit OnceBad(std::uint64_t bad_step) : CustomGroup(2 * kTensor, 0.5F), bad_step_(bad_step) {}
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::ranges::fill(gradients().first(kTensor), step_++ == bad_step_ ? kNone : 0.5F);
    for (const std::uint32_t tensor : {1, 0}) on_ready(TensorId(tensor));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }

 private:
  const std::uint64_t bad_step_;
  std::uint64_t step_ = 0;
};

/// The shard server adds in the order of ranks. Each of the two is once the one that sends it
/// nothing more: whichever has the lower rank, the other must not wait for it there.
TEST(ServersWaits, NobodyWaitsOnAnotherServerForAContributionThatIsNotFinite) {
  ServerConfig c = config("nonfinite");
  c.nonfinite = "skip";
  c.goal.rounds = 20;
  c.transfer.credit_bytes = 2 * c.transfer.chunk_bytes;
  auto specs = two_workers();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    auto custom = std::make_shared<CustomModel>();
    custom->manifest = {{"bad", DType::kF32, {kTensor}}, {"good", DType::kF32, {kTensor}}};
    custom->make_group = [i] { return std::make_unique<OnceBad>(3 + 2 * i); };
    custom->initialize = [](std::uint64_t, std::span<float> params) {
      std::ranges::fill(params, 0.5F);
    };
    specs[i].custom = custom;
  }
  const auto data = make_blobs(64, 8, 4, 5);
  TestServer leader(c, tcp);
  TestShard shard("s1", leader.endpoint());
  auto training = std::async(std::launch::async,
                             [&] { return run_workers(specs, data, leader.endpoint(), tcp); });
  EXPECT_TRUE(leader.wait_until([](const auto& view) { return view.round >= 20; }))
      << "the round waits";
  for (const WorkerOutcome& outcome : training.get()) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    EXPECT_EQ(outcome.summary.skipped, 2u);
  }
  EXPECT_TRUE(leader.join().ok());
  EXPECT_TRUE(shard.join().ok());
}

}  // namespace
}  // namespace centroid::test::servers_waits_test
