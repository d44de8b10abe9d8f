#include "tests/support/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>

#include <gtest/gtest.h>

#include "common/checkpoint/checkpoint.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/in_process_transport.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using server::ServerConfig;

enum class Wire { kInProcess, kTcp };

/// Every test of a cluster runs over both transports.
class ClusterTest : public ::testing::TestWithParam<Wire> {
 protected:
  TestServer::TransportFactory transports() {
    if (GetParam() == Wire::kTcp)
      return [](Executor executor) { return transport::make_tcp(executor); };
    return [hub = hub_](Executor executor) { return transport::make_inprocess(executor, hub); };
  }

  ServerConfig config() {
    ServerConfig c;
    c.run_dir = directory_.path() / std::to_string(++runs_);
    c.leaving.when_finished = true;
    c.transfer.chunk_bytes = 256;  // many chunks even in a small model
    c.timeouts.lease = std::chrono::seconds(20);
    c.optimizer = {.name = "momentum", .learning_rate = 0.05};
    c.goal.epochs = 3;
    return c;
  }

  std::vector<WorkerSpec> workers(std::size_t n, std::uint64_t batch = 8) {
    std::vector<WorkerSpec> specs(n);
    for (std::size_t i = 0; i < n; ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].batch = batch;
    }
    return specs;
  }

  std::vector<WorkerOutcome> train(ServerConfig c, const std::vector<WorkerSpec>& specs,
                                   const worker::DataSplit& data) {
    c.workers.min = specs.size();
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data, server.endpoint(), transports());
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& outcome : outcomes)
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    return outcomes;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  /// Of all samples, with these parameters; with those at the beginning where there are none.
  static double loss_of(const std::string& spec, const std::vector<float>& params,
                        const worker::Dataset& data) {
    const auto model = worker::make_model(spec).value();
    const auto group = worker::make_replica_group(*model, {.devices = "cpu:0"}).value();
    if (params.empty())
      model->initialize(1, group->params());
    else
      std::ranges::copy(params, group->params().begin());
    const auto found = group->evaluate(data, 0, data.samples).value();
    return found.loss_sum / static_cast<double>(found.samples);
  }

  /// Largest difference relative to the largest parameter.
  static double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, scale = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
      scale = std::max(scale, std::abs(static_cast<double>(b[i])));
    }
    return difference / scale;
  }

  std::shared_ptr<transport::InProcessHub> hub_ = transport::make_inprocess_hub();
  TemporaryDirectory directory_;
  int runs_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transports, ClusterTest, ::testing::Values(Wire::kInProcess, Wire::kTcp),
                         [](const auto& wire) {
                           return wire.param == Wire::kTcp ? "tcp" : "inprocess";
                         });

/// The same numbers but for rounding, and so the same loss, far within 1 %, at step 100.
TEST_P(ClusterTest, ManyWorkersGiveWhatOneGivesWithTheSumOfTheirBatches) {
  const auto data = make_blobs(400, 8, 4, 1);
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    SCOPED_TRACE(optimizer);
    ServerConfig c = config();
    c.goal.epochs = 0;
    c.goal.rounds = 100;
    c.optimizer.name = optimizer;
    c.optimizer.learning_rate = 0.01;
    const auto outcomes = train(c, workers(4), data);
    const auto alone = run_local("mlp:8-16-4", data, c, 4 * 8);
    ASSERT_TRUE(alone.status.ok());
    EXPECT_LT(distance(outcomes[0].params, alone.params), 1e-5);
    EXPECT_GT(distance(outcomes[0].params, std::vector<float>(alone.params.size(), 0.01f)), 0.1);
    const double loss = loss_of("mlp:8-16-4", outcomes[0].params, data.train),
                 expected = loss_of("mlp:8-16-4", alone.params, data.train);
    EXPECT_LT(expected, loss_of("mlp:8-16-4", {}, data.train)) << "nothing was learned";
    EXPECT_NEAR(loss, expected, 0.01 * expected);
  }
}

TEST_P(ClusterTest, EveryWorkerHoldsTheSameBitsAndAnotherRunGivesThemAgain) {
  const auto data = make_blobs(203, 8, 4, 2);  // the last round of an epoch is uneven
  std::vector<float> first;
  for (const char* apply : {"server", "worker"}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      for (const int repetition : {0, 1}) {
        SCOPED_TRACE(std::string(apply) + " " + optimizer + " run " + std::to_string(repetition));
        ServerConfig c = config();
        c.apply = apply;
        c.optimizer.name = optimizer;
        const auto outcomes = train(c, workers(3), data);
        for (const auto& outcome : outcomes)
          EXPECT_TRUE(same_bits(outcome.params, outcomes[0].params));
        if (repetition == 0 && std::string(apply) == "server" && std::string(optimizer) == "sgd")
          first = outcomes[0].params;
        if (std::string(optimizer) == "sgd") {
          EXPECT_TRUE(same_bits(outcomes[0].params, first));
        }
      }
    }
  }
}

TEST_P(ClusterTest, AnEpochUsesEverySampleOnceAlsoWithEmptyShares) {
  const auto data = make_blobs(
      50, 8, 4, 3);  // 6 workers of 8: one full round of 48, then 2 samples for 6 workers
  ServerConfig c = config();
  const auto outcomes = train(c, workers(6), data);
  std::uint64_t samples = 0;
  for (const auto& outcome : outcomes) {
    samples += outcome.summary.samples;
    EXPECT_EQ(outcome.summary.rounds, 6u);
  }
  EXPECT_EQ(samples, 3 * 50u);
}

TEST_P(ClusterTest, SeveralDevicesAndUnevenBatchesAreWeightedBySamples) {
  const auto data = make_blobs(240, 8, 4, 4);
  ServerConfig c = config();
  auto specs = workers(3);
  specs[0].batch = 4;
  specs[1].batch = 12;
  specs[1].devices = "cpu:0,cpu:1";
  specs[2].batch = 8;
  const auto outcomes = train(c, specs, data);
  const auto alone = run_local("mlp:8-16-4", data, c, 24);
  EXPECT_LT(distance(outcomes[0].params, alone.params), 1e-5);
}

TEST_P(ClusterTest, HalfPrecisionContributionsTrainAlmostTheSame) {
  const auto data = make_blobs(240, 8, 4, 5);
  ServerConfig c = config();
  auto specs = workers(2);
  for (auto& spec : specs) spec.codec = "bf16";
  const auto outcomes = train(c, specs, data);
  const auto alone = run_local("mlp:8-16-4", data, c, 16);
  const double d = distance(outcomes[0].params, alone.params);
  EXPECT_LT(d, 1e-2);
  EXPECT_GT(d, 1e-7);
}

/// Also of a contribution that comes late, while no round is open.
TEST_P(ClusterTest, ARoundReportsTheSamplesOfItsContributors) {
  const auto data = make_blobs(20'000, 8, 4, 7);
  for (const std::string policy : {"asp", "quorum:2"}) {
    SCOPED_TRACE(policy);
    ServerConfig c = config();
    c.goal.epochs = 0;
    c.goal.rounds = 200;
    c.policy = policy;
    if (policy != "asp") c.late = "carry:max=8";
    auto specs = workers(3);
    std::map<std::string, std::uint64_t> batches;
    for (std::size_t i = 0; i < specs.size(); ++i)
      batches[specs[i].name] = specs[i].batch = std::array{8u, 5u, 11u}[i];
    c.workers.min = specs.size();
    std::uint64_t late = 0, whole_with_late = 0;
    // Where threads run one after another, as under a sanitizer, nobody may be late in a whole job.
    for (int tries = 0; tries < 20 && whole_with_late == 0; ++tries) {
      TestServer server(c, transports());
      const auto outcomes = run_workers(specs, data, server.endpoint(), transports());
      for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.ok());
      ASSERT_TRUE(server.join().ok());
      std::uint64_t rounds = 0;
      for (const auto& round : server.rounds()) {
        if (round.outcome != "committed") continue;
        ++rounds;
        late += round.late.size();
        std::uint64_t samples = 0;
        for (const auto& names : {round.contributors, round.late})
          for (const std::string& name : names) samples += batches[name];
        // What others gave back may be less than a batch.
        EXPECT_LE(round.samples, samples)
            << "round " << round.round << ", " << round.late.size() << " late";
        whole_with_late += !round.late.empty() && round.samples == samples ? 1 : 0;
      }
      EXPECT_EQ(rounds, c.goal.rounds);
    }
    EXPECT_GT(whole_with_late, 0u);
    EXPECT_GT(late, 0u) << "nobody was late, so nothing was shown";
  }
}

TEST_P(ClusterTest, ANonFiniteGradientHaltsTheJobEverywhereAndSaysWhere) {
  const auto data = make_blobs(64, 8, 4, 6, 17);
  ServerConfig c = config();
  c.workers.min = 2;
  TestServer server(c, transports());
  const auto outcomes = run_workers(workers(2), data, server.endpoint(), transports());
  const Status ended = server.join();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().message().rfind("JIDOKA HALT: worker ", 0), 0u)
      << ended.error().message();
  EXPECT_NE(ended.error().message().find("layers."), std::string::npos);
  EXPECT_NE(ended.error().message().find("round "), std::string::npos);
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome.status.ok());
    EXPECT_EQ(outcome.status.error().message(), ended.error().message());
    EXPECT_TRUE(outcome.summary.is_halted);
  }
}

TEST_P(ClusterTest, ASkippedRoundHasNoEffectOnAnyWorker) {
  const auto data = make_blobs(64, 8, 4, 6, 17);
  ServerConfig c = config();
  c.nonfinite = "skip";
  const auto outcomes = train(c, workers(2), data);
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.summary.skipped, 3u);  // the bad sample comes once an epoch
    EXPECT_EQ(outcome.summary.rounds, 12u);
    EXPECT_TRUE(same_bits(outcome.params, outcomes[0].params));
    for (const float x : outcome.params) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(ClusterTest, AnotherModelIsRefusedWithBothShapesAndTheOthersTrainOn) {
  const auto data = make_blobs(64, 8, 4, 7);
  ServerConfig c = config();
  c.workers.min = 2;
  TestServer server(c, transports());
  WorkerOutcome stranger;
  std::vector<WorkerOutcome> outcomes;
  std::thread first(
      [&] { outcomes = run_workers(workers(1), data, server.endpoint(), transports()); });
  ASSERT_TRUE(server.wait_until([](const auto& view) { return view.model.parameters > 0; }));
  WorkerSpec other{.name = "other", .model = "mlp:8-12-4", .token = {}};
  stranger = run_worker(other, data, server.endpoint(), transports());
  ASSERT_FALSE(stranger.status.ok());
  EXPECT_EQ(stranger.status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_NE(stranger.status.error().message().find("[16, 8]"), std::string::npos)
      << stranger.status.error().message();
  EXPECT_NE(stranger.status.error().message().find("[12, 8]"), std::string::npos);
  auto second = workers(2)[1];
  const auto outcome = run_worker(second, data, server.endpoint(), transports());
  first.join();
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(server.join().ok());
}

TEST_P(ClusterTest, AModelOfAWorkerThatLeftBeforeTheStartDoesNotCount) {
  const auto data = make_blobs(64, 8, 4, 11);
  ServerConfig c = config();
  c.workers.min = 2;
  TestServer server(c, transports());
  std::thread first([&] {
    const WorkerSpec leaver{.name = "leaver", .model = "mlp:8-12-4", .token = {}};
    EXPECT_TRUE(run_worker(leaver, data, server.endpoint(), transports()).status.ok());
  });
  ASSERT_TRUE(server.wait_until([&](const auto&) { return server.present() == 1; }));
  ASSERT_TRUE(server.drain(server.workers().front().member).ok());
  first.join();
  ASSERT_TRUE(server.wait_until([&](const auto&) { return server.present() == 0; }));
  for (const auto& outcome : run_workers(workers(2), data, server.endpoint(), transports()))
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
  EXPECT_TRUE(server.join().ok());
}

TEST_P(ClusterTest, ALateWorkerGetsTheStateAndEndsWithTheSameBits) {
  const auto data = make_blobs(400, 8, 4, 8);
  for (const char* apply : {"server", "worker"}) {
    SCOPED_TRACE(apply);
    ServerConfig c = config();
    c.apply = apply;
    c.optimizer.name = "adam";
    c.goal.epochs = 30;
    TestServer server(c, transports());
    std::vector<WorkerOutcome> outcomes(2);
    std::thread first(
        [&] { outcomes[0] = run_worker(workers(1)[0], data, server.endpoint(), transports()); });
    ASSERT_TRUE(server.wait_until([](const auto& view) { return view.version > 5; }));
    outcomes[1] = run_worker(workers(2)[1], data, server.endpoint(), transports());
    first.join();
    ASSERT_TRUE(server.join().ok());
    ASSERT_TRUE(outcomes[1].status.ok());
    EXPECT_GT(outcomes[1].summary.rounds, 0u);
    EXPECT_TRUE(same_bits(outcomes[0].params, outcomes[1].params));
  }
}

TEST_P(ClusterTest, AResumedJobEndsWithTheBitsOfOneThatWasNeverStopped) {
  const auto data = make_blobs(203, 8, 4, 9);
  ServerConfig whole = config();
  whole.optimizer.name = "adam";
  whole.goal.epochs = 6;
  const auto expected = train(whole, workers(2), data);
  ServerConfig c = whole;
  c.run_dir = directory_.path() / "resumed";
  c.goal.epochs = 0;
  c.goal.rounds = 20;
  train(c, workers(2), data);
  c.goal.rounds = 0;
  c.goal.epochs = 6;
  c.resume = true;
  const auto resumed = train(c, workers(2), data);
  EXPECT_TRUE(same_bits(resumed[0].params, expected[0].params));
}

TEST_P(ClusterTest, ACheckpointStandsAtTheEndOfEveryOtherEpoch) {
  const auto data = make_blobs(64, 8, 4, 2);  // 4 rounds an epoch
  ServerConfig c = config();
  c.goal.epochs = 5;
  c.checkpoint.every_epochs = 2;
  c.checkpoint.keep = 100;
  c.workers.min = 2;
  TestServer server(c, transports());
  // One is over before the next is due: rounds are shorter than it takes to write.
  const auto folder = std::filesystem::path(c.run_dir) / "checkpoints";
  const auto written = [&folder] {
    std::ptrdiff_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      count += entry.path().filename().string().rfind("checkpoint-", 0) == 0 ? 1 : 0;
    return count;
  };
  const auto observe = [&](const worker::Share& share, const auto&, const auto&, const auto&) {
    if (share.round.value % 8 != 0) return;
    const auto wanted = static_cast<std::ptrdiff_t>(share.round.value / 8);
    EXPECT_TRUE(server.wait_until([&](const auto&) { return written() >= wanted; }));
  };
  for (const auto& outcome :
       run_workers(workers(2), data, server.endpoint(), transports(), observe))
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
  ASSERT_TRUE(server.join().ok());
  const auto directory =
      CheckpointDirectory::open(std::filesystem::path(c.run_dir) / "checkpoints", 100).value();
  std::vector<std::uint64_t> epochs, rounds;
  for (const CheckpointEntry& entry : directory.list(true)) {
    epochs.push_back(entry.info.epoch);
    rounds.push_back(entry.info.round.value);
    EXPECT_EQ(entry.problem, "");
  }
  EXPECT_EQ(epochs, (std::vector<std::uint64_t>{5, 4, 2}));
  EXPECT_EQ(rounds, (std::vector<std::uint64_t>{20, 16, 8}));
}

/// A worker that stands behind its fifth round until it is let go on.
class HeldWorker {
 public:
  HeldWorker(WorkerSpec spec, const worker::DataSplit& data, TestServer& server,
             TestServer::TransportFactory transports)
      : training_(std::async(std::launch::async, [this, &data, &server, spec = std::move(spec),
                                                  transports = std::move(transports)] {
          const auto observe = [this](const auto&...) {
            if (++rounds_ == 5) gate_.get_future().wait();
          };
          return run_worker(spec, data, server.endpoint(), transports, observe);
        })) {
    EXPECT_TRUE(server.wait_until([](const auto& view) { return view.round == 6; }));
  }
  void go_on() { gate_.set_value(); }
  WorkerOutcome end() { return training_.get(); }

 private:
  std::promise<void> gate_;
  std::uint64_t rounds_ = 0;
  std::future<WorkerOutcome> training_;  // last: it uses the others
};

TEST_P(ClusterTest, ACheckpointOfAnEpochDueWhileAnotherIsWrittenFollowsIt) {
  const auto data = make_blobs(64, 8, 4, 2);
  ServerConfig c = config();
  c.goal.epochs = 0;
  c.checkpoint.every_epochs = 3;
  c.timeouts.lease = std::chrono::seconds(2);
  TestServer server(c, transports());
  HeldWorker worker(workers(1, 16)[0], data, server, transports());
  auto disk = server.hold_disk();
  auto first = std::async(std::launch::async, [&] { return server.checkpoint(); });
  ASSERT_TRUE(server.wait_for_wait("disk", "which is written to"));
  worker.go_on();
  EXPECT_TRUE(server.wait_until([](const auto& view) { return view.epoch >= 4; }));
  const auto paused = server.pause();
  ASSERT_TRUE(paused.ok());
  EXPECT_FALSE(paused->is_kept) << "without an answer of the disk";
  EXPECT_TRUE(server.wait_until([](const auto& view) { return view.state == "paused"; }));
  const std::uint64_t version = server.view().version;
  disk.reset();
  const auto of_before = first.get();
  ASSERT_TRUE(of_before.ok());
  EXPECT_EQ(of_before->round, 5u);
  const auto directory =
      CheckpointDirectory::open(std::filesystem::path(c.run_dir) / "checkpoints", 100).value();
  EXPECT_TRUE(server.wait_until([&](const auto&) {
    const auto written = directory.list(false);
    return !written.empty() && written.front().version.value == version;
  }));
  server.stop();
  EXPECT_TRUE(server.join().ok());
  EXPECT_TRUE(worker.end().status.ok());
}

TEST_P(ClusterTest, ACheckpointDueWhileAnotherIsWrittenFollowsIt) {
  const auto data = make_blobs(64, 8, 4, 2);
  ServerConfig c = config();
  c.goal.epochs = 0;
  c.checkpoint.every_rounds = 7;
  c.timeouts.lease = std::chrono::seconds(2);
  TestServer server(c, transports());
  HeldWorker worker(workers(1, 16)[0], data, server, transports());
  auto disk = server.hold_disk();
  auto first = std::async(std::launch::async, [&] { return server.checkpoint(); });
  ASSERT_TRUE(server.wait_for_wait("disk", "which is written to"));
  worker.go_on();
  EXPECT_TRUE(server.wait_until([](const auto& view) { return view.round > 20; }));
  ASSERT_TRUE(server.pause().ok());
  EXPECT_TRUE(server.wait_until([](const auto& view) { return view.state == "paused"; }));
  const std::uint64_t version = server.view().version;
  disk.reset();
  ASSERT_TRUE(first.get().ok());
  const auto directory =
      CheckpointDirectory::open(std::filesystem::path(c.run_dir) / "checkpoints", 100).value();
  EXPECT_TRUE(server.wait_until([&](const auto&) {
    const auto written = directory.list(false);
    return !written.empty() && written.front().version.value == version;
  })) << "the job is paused: no later round calls for one";
  server.stop();
  EXPECT_TRUE(server.join().ok());
  EXPECT_TRUE(worker.end().status.ok());
}

// A share of the processor so small that what is written beside rounds rests for hours.
TEST_P(ClusterTest, ACheckpointBesideRoundsIsWrittenAtOnceWhenSomebodyWaits) {
  const auto data = make_blobs(64, 8, 4, 2);
  ServerConfig c = config();
  c.optimizer.name = "momentum";
  c.goal.rounds = 9;
  c.goal.epochs = 0;
  c.checkpoint.every_rounds = 3;
  c.checkpoint.processor_share = 1e-9;
  TestServer server(c, transports());
  HeldWorker worker(workers(1, 16)[0], data, server, transports());
  const auto directory =
      CheckpointDirectory::view(std::filesystem::path(c.run_dir) / "checkpoints");
  EXPECT_TRUE(directory->list(false).empty()) << "that of round 3 rests";
  const auto asked = server.checkpoint();
  worker.go_on();
  ASSERT_TRUE(asked.ok()) << asked.error().to_string();
  EXPECT_EQ(asked->round, 5u);
  EXPECT_TRUE(server.join().ok());
  EXPECT_TRUE(worker.end().status.ok());
  std::vector<std::uint64_t> kept;
  for (const CheckpointEntry& entry : directory->list(true)) kept.push_back(entry.info.round.value);
  EXPECT_EQ(kept, (std::vector<std::uint64_t>{9, 6, 5}));
}

// A share of the processor so small that what is written beside rounds rests for hours.
TEST_P(ClusterTest, ACheckpointRestsOnlyUntilTheNextIsDue) {
  const auto data = make_blobs(64, 8, 4, 2);
  ServerConfig c = config();
  c.goal.epochs = 0;
  c.checkpoint.every_rounds = 3;
  c.checkpoint.processor_share = 1e-9;
  c.checkpoint.keep = 100;
  TestServer server(c, transports());
  HeldWorker worker(workers(1, 16)[0], data, server, transports());
  worker.go_on();
  const auto directory =
      CheckpointDirectory::view(std::filesystem::path(c.run_dir) / "checkpoints");
  EXPECT_TRUE(server.wait_until([&](const auto&) { return directory->list(false).size() > 2; }))
      << "the first one rests";
  server.stop();
  EXPECT_TRUE(server.join().ok());
  EXPECT_TRUE(worker.end().status.ok());
}

TEST_P(ClusterTest, AnEpochThatEndsWithASkippedRoundGetsItsCheckpoint) {
  const auto data = make_blobs(64, 8, 4, 2, 5);  // 4 rounds an epoch, one of them is skipped
  ServerConfig c = config();
  c.nonfinite = "skip";
  c.goal.epochs = 24;
  c.checkpoint.every_epochs = 1;
  c.checkpoint.keep = 100;
  TestServer server(c, transports());
  std::uint64_t rounds = 0, skipped = 0, skipped_at_end = 0, missing = 0;
  const auto observe = [&](const worker::Share&, const worker::StepStats&,
                           const worker::RoundReport&, const worker::TrainingSummary& summary) {
    const bool is_skipped = summary.skipped > std::exchange(skipped, summary.skipped);
    if (++rounds % 4 != 0 || rounds / 4 == c.goal.epochs) return;
    skipped_at_end += is_skipped ? 1 : 0;
    const bool is_there = server.wait_until([&](const auto&) {
      const auto written =
          CheckpointDirectory::view(std::filesystem::path(c.run_dir) / "checkpoints")->list(false);
      return !written.empty() && written.front().info.epoch == rounds / 4;
    });
    missing += is_there ? 0 : 1;
  };
  const auto outcome =
      run_worker(workers(1, 16)[0], data, server.endpoint(), transports(), observe);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(server.join().ok());
  EXPECT_GT(skipped_at_end, 0u);
  EXPECT_EQ(missing, 0u);
  EXPECT_EQ(rounds, 4 * c.goal.epochs);
}

/// The link of one of two workers breaks at its N-th operation, for every N: nothing hangs, the job
/// ends, and the survivors agree.
TEST_P(ClusterTest, ABreakAtEveryOperationOfAWorkerEndsWell) {
  const auto data = make_blobs(48, 8, 4, 10);
  using Action = transport::FaultPlan::Action;
  std::uint64_t operations = 40;
  for (const Action action : {Action::kCut, Action::kFail, Action::kCorrupt, Action::kTruncate}) {
    for (std::uint64_t n = 0; n < operations; n += action == Action::kCut ? 1 : 5) {
      SCOPED_TRACE("action " + std::to_string(static_cast<int>(action)) + " at operation " +
                   std::to_string(n));
      ServerConfig c = config();
      c.workers.min = 2;
      c.goal.epochs = 2;
      c.transfer.chunk_bytes = 1024;
      TestServer server(c, transports());
      const auto faulty = [&, plain = transports()](Executor executor) {
        transport::FaultPlan plan;
        plan.action = action;
        plan.at_operation = n;
        return transport::make_faulty(plain(executor), plan);
      };
      WorkerOutcome steady, shaky;
      std::thread first(
          [&] { steady = run_worker(workers(1)[0], data, server.endpoint(), transports()); });
      auto spec = workers(2)[1];
      spec.join_timeout =
          std::chrono::milliseconds(150);  // one more try, also when the job is over by then
      std::thread second([&] {
        shaky = run_worker(spec, data, server.endpoint(), faulty);
        if (shaky.status.ok() || server.view().state != "waiting") return;
        spec.join_timeout =
            std::chrono::seconds(20);  // it gave up before the job began, which needs two
        shaky = run_worker(spec, data, server.endpoint(), transports());
      });
      first.join();
      ASSERT_TRUE(steady.status.ok()) << steady.status.error().to_string();
      ASSERT_TRUE(server.join().ok());
      second.join();
      if (shaky.status.ok() && shaky.summary.version == steady.summary.version) {
        EXPECT_TRUE(same_bits(shaky.params, steady.params));
      }
    }
  }
}

}  // namespace
}  // namespace centroid::test
