#include <gtest/gtest.h>

#include "tests/support/examples.h"
#include "tests/support/in_process.h"
#include "tests/support/late_device.h"
#include "tests/support/late_model.h"
#include "tests/support/simt.h"

/// Local steps whose parameters and slots stay on GPUs (tests/support/late_device.h), in clusters
/// within one process, against the optimizer on the host: the same bits.
namespace centroid::test {
namespace {

using server::ServerConfig;

struct Setting {
  std::uint64_t fragments = 1, overlap = 0, rounds = 5;
  OptimizerConfig inner{.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.1};
  const char* model = "mlp:12-16-5,gelu";
};

class GpuLocalSteps : public ::testing::Test, protected InProcess {
 protected:
  void SetUp() override {
    simt::use_seed(5);
    simt::use_stream_seed(5);
  }
  ServerConfig config(const Setting& s) {
    ServerConfig c = config_of_own();
    c.exchange = "star";
    c.timeouts.lease = std::chrono::seconds(60);
    c.goal.rounds = s.rounds;
    c.local.count = 4;
    c.local.fragments = s.fragments;
    c.local.overlap = s.overlap;
    c.workers.min = 2;
    return c;
  }

  /// Two workers with a GPU each.
  static std::vector<WorkerSpec> workers(const Setting& s, bool on_gpu) {
    std::vector<WorkerSpec> specs(2);
    worker::GroupOptions options;
    options.devices = "cuda:0";
    const auto custom = late_model(s.model, options);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].batch = 3 + i;
      specs[i].inner = s.inner;
      specs[i].custom = custom;
      specs[i].on_gpu = on_gpu;
    }
    return specs;
  }

  std::vector<WorkerOutcome> train(const ServerConfig& c, const std::vector<WorkerSpec>& specs) {
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data_, server.endpoint(), transports());
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_EQ(outcome.params, outcomes[0].params);
    }
    return outcomes;
  }

  worker::DataSplit data_{worker::test::random_data(90, 1), worker::test::random_data(20, 2)};
};

TEST_F(GpuLocalSteps, GiveTheBitsOfTheOptimizerOnTheHost) {
  std::vector<Setting> settings(8);
  settings[1].inner = {.name = "nesterov", .learning_rate = 0.02};
  settings[1].inner.clip_norm = 0.3;
  settings[2].overlap = 1;
  settings[3].fragments = 2;
  settings[4].inner = {.name = "sgd", .learning_rate = 0.05};
  for (std::size_t i = 5; i < settings.size(); ++i) {
    settings[i] = settings[i - 5];
    settings[i].model = "mlp:12-16-5,gelu,norm=batch";
  }
  for (const Setting& s : settings) {
    SCOPED_TRACE(s.inner.name + ", " + std::to_string(s.fragments) + " fragments, overlap " +
                 std::to_string(s.overlap));
    const auto on_host = train(config(s), workers(s, false));
    const auto before = simt::traffic().to_host;
    const auto on_gpu = train(config(s), workers(s, true));
    const auto moved = simt::traffic().to_host - before;
    EXPECT_EQ(on_gpu[0].params, on_host[0].params);
    EXPECT_EQ(on_gpu[0].summary.last_loss, on_host[0].summary.last_loss);
    // Parameters once a contribution (twice with overlap), never a gradient a step.
    const std::uint64_t plane = on_gpu[0].params.size() * sizeof(float);
    const std::uint64_t rounds = 2 * s.rounds * (s.overlap > 0 ? 2 : 1);
    constexpr std::uint64_t kOfStart = 2 * 4096;  // a layer that is looked at on each GPU
    EXPECT_LT(moved, rounds * plane + plane + kOfStart);
  }
}

/// Killed after a round, with the slots on the GPU; their copies are on disk.
TEST_F(GpuLocalSteps, AResumedJobEndsWithTheSameBits) {
  Setting s;
  s.rounds = 6;
  auto specs = workers(s, true);
  const auto whole = train(config(s), specs);
  for (WorkerSpec& spec : specs) spec.state_dir = directory_.path() / "state";
  ServerConfig c = config(s);
  c.checkpoint.every_rounds = 2;
  c.run_id = "run";
  {
    TestServer server(c, transports());
    std::vector<std::thread> threads;
    for (const WorkerSpec& spec : specs)
      threads.emplace_back([&, spec] {
        (void)run_worker(spec, data_, server.endpoint(), transports(),
                         [&](const auto& share, const auto&, const auto&, const auto&) {
                           if (share.round.value == 2) server.stop();
                         });
      });
    for (auto& thread : threads) thread.join();
    (void)server.join();
  }
  c.resume = true;
  const auto resumed = train(c, specs);
  EXPECT_LT(resumed[0].summary.rounds, s.rounds);
  EXPECT_EQ(resumed[0].params, whole[0].params);
  // And what was left there is of use to an optimizer on the host.
  auto moved = workers(s, false);
  for (WorkerSpec& spec : moved) spec.state_dir = directory_.path() / "state";
  c.goal.rounds = s.rounds = 8;
  const auto on_host = train(c, moved);
  const auto longer = train(config(s), workers(s, true));
  EXPECT_EQ(on_host[0].params, longer[0].params);
}

}  // namespace
}  // namespace centroid::test
