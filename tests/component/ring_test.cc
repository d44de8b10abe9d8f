#include <cmath>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/in_process_transport.h"
#include "tests/support/trial_groups.h"
#include "tests/unit/temporary_directory.h"

/// Clusters whose workers add among themselves, in one process.
namespace centroid::test::ring_test {
namespace {

using server::ServerConfig;
using Action = transport::FaultPlan::Action;

enum class Wire { kInProcess, kTcp };

class RingTest : public ::testing::TestWithParam<Wire> {
 protected:
  TestServer::TransportFactory transports() {
    transport::TransportOptions options;
    options.stall_timeout = std::chrono::hours(1);
    if (GetParam() == Wire::kTcp)
      return [options](Executor executor) { return transport::make_tcp(executor, options); };
    return [options, hub = hub_](Executor executor) {
      return transport::make_inprocess(executor, hub, options);
    };
  }

  TestServer::TransportFactory faulty(Action action, std::uint64_t operation) {
    return [=, plain = transports()](Executor executor) {
      transport::FaultPlan plan;
      plan.action = action;
      plan.at_operation = operation;
      return transport::make_faulty(plain(executor), plan);
    };
  }

  ServerConfig config(const std::string& exchange = "ring") {
    ServerConfig c;
    c.run_dir = directory_.path() / std::to_string(++runs_);
    c.leaving.when_finished = true;
    c.exchange = exchange;
    c.transfer.chunk_bytes = 256;
    c.reduce.bucket_bytes = 300;  // several buckets even in a small model
    c.timeouts.lease = std::chrono::seconds(20);
    c.optimizer = {.name = "momentum", .learning_rate = 0.05};
    c.goal.epochs = 2;
    return c;
  }

  std::vector<WorkerSpec> workers(const ServerConfig& c, std::size_t n) {
    std::vector<WorkerSpec> specs(n);
    for (std::size_t i = 0; i < n; ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].exchange = c.exchange;
      specs[i].codec = codec_;
      specs[i].peers = transports();
    }
    return specs;
  }

  std::vector<WorkerOutcome> train(ServerConfig c, std::size_t n, const worker::DataSplit& data) {
    return train(c, workers(c, n), data);
  }
  std::vector<WorkerOutcome> train(ServerConfig c, const std::vector<WorkerSpec>& specs,
                                   const worker::DataSplit& data) {
    c.workers.min = specs.size();
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data, server.endpoint(), transports());
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_TRUE(same_bits(outcome.params, outcomes[0].params));
    }
    return outcomes;
  }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  /// Two workers, of which the second meets server and peers through these; the first must end
  /// well, with the bits of the second if both saw the end.
  void expect_good_end(const ServerConfig& c, const worker::DataSplit& data,
                       const TestServer::TransportFactory& to_server,
                       const TestServer::TransportFactory& to_peers) {
    TestServer server(c, transports());
    auto specs = workers(c, 2);
    specs[1].join_timeout = std::chrono::milliseconds(150);
    specs[1].peers = to_peers;
    WorkerOutcome steady, shaky;
    std::thread first(
        [&] { steady = run_worker(specs[0], data, server.endpoint(), transports()); });
    std::thread second([&] {
      shaky = run_worker(specs[1], data, server.endpoint(), to_server);
      if (shaky.status.ok() || server.view().state != "waiting") return;
      specs[1].join_timeout = std::chrono::seconds(20);  // it gave up before the job began
      shaky = run_worker(specs[1], data, server.endpoint(), transports());
    });
    first.join();
    EXPECT_TRUE(steady.status.ok()) << steady.status.error().to_string();
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    second.join();
    if (shaky.status.ok() && shaky.summary.version == steady.summary.version) {
      EXPECT_TRUE(same_bits(shaky.params, steady.params));
    }
  }

  std::shared_ptr<transport::InProcessHub> hub_ = transport::make_inprocess_hub();
  TemporaryDirectory directory_;
  std::string codec_ = "f32";
  int runs_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transports, RingTest, ::testing::Values(Wire::kInProcess, Wire::kTcp),
                         [](const auto& wire) {
                           return wire.param == Wire::kTcp ? "tcp" : "inprocess";
                         });

TEST_P(RingTest, AddingInRankOrderHasTheBitsOfStar) {
  const auto data = make_blobs(100, 8, 4, 1);
  for (const char* optimizer : {"sgd", "adam"}) {
    SCOPED_TRACE(optimizer);
    ServerConfig star = config("star"), chain = config();
    star.optimizer.name = chain.optimizer.name = optimizer;
    chain.reduce.algorithm = "chain";
    EXPECT_TRUE(same_bits(train(star, 4, data)[0].params, train(chain, 4, data)[0].params));
  }
}

/// The mean is finite, and what every worker would make of it is not.
TEST_P(RingTest, AStepThatIsNotFiniteIsMadeByNobody) {
  const auto data = make_blobs(64, 8, 4, 6);
  const auto expect_finite = [](const WorkerOutcome& outcome) {
    for (const float x : outcome.params) ASSERT_TRUE(std::isfinite(x));
  };
  for (const char* codec : {"f32", "int8", "topk:0.1"})
    for (const char* optimizer : {"sgd", "adam"}) {
      SCOPED_TRACE(std::string(codec) + ", " + optimizer);
      codec_ = codec;
      ServerConfig c = config();
      c.optimizer = {.name = optimizer, .learning_rate = 1e39};
      c.workers.min = 3;
      {
        TestServer server(c, transports());
        const auto outcomes = run_workers(workers(c, 3), data, server.endpoint(), transports());
        const Status ended = server.join();
        ASSERT_FALSE(ended.ok());
        EXPECT_NE(ended.error().message().find(
                      "is not finite in round 1, though every contribution is; the largest"),
                  std::string::npos)
            << ended.error().message();
        for (const WorkerOutcome& outcome : outcomes) {
          EXPECT_LT(outcome.summary.version, Version(2));
          expect_finite(outcome);
        }
      }
      c.run_dir += "-skips";
      c.nonfinite = "skip";
      for (const WorkerOutcome& outcome : train(c, 3, data)) {
        EXPECT_LT(outcome.summary.version, Version(2));
        EXPECT_GT(outcome.summary.skipped, 0u);
        expect_finite(outcome);
      }
    }
}

/// A worker without samples tries the same step.
TEST_P(RingTest, AStepIsTriedWithTheRateOfItsRound) {
  for (const char* const exchange : {"ring", "hierarchical"})
    for (const char* const codec : {"f32", "bf16"})
      for (const TrialRates& one : trial_rates()) {
        SCOPED_TRACE(std::string(exchange) + ", " + codec + ", " + std::to_string(one.ratio) +
                     ", " + std::to_string(one.full) + ", " + std::to_string(one.last));
        ServerConfig c = config(exchange);
        c.optimizer = {.name = "sgd", .learning_rate = kTrialRate};
        c.optimizer_scale_ratio = one.ratio;
        c.nonfinite = "skip";
        c.goal = {.epochs = 1};
        auto specs = trial_workers_by_samples(one.full, one.last);
        for (WorkerSpec& spec : specs) {
          spec.exchange = exchange;
          spec.codec = codec;
          spec.peers = transports();
        }
        for (const WorkerOutcome& outcome : train(c, specs, trial_data())) {
          EXPECT_FLOAT_EQ(outcome.params.front(), one.parameter);
          EXPECT_EQ(outcome.summary.skipped, one.skipped);
          EXPECT_EQ(outcome.summary.version, Version(3 - one.skipped));
        }
      }
}

/// What a skipped round leaves in parameters and slots is nothing, in whatever exchange. Where the
/// step was tried, the mean is clipped as in star.
TEST_P(RingTest, RoundsBehindAStepThatWasOnlyTriedHaveTheBitsOfStar) {
  const std::vector<std::pair<double, std::uint64_t>> clips{{0, 1}, {1e21, 1}, {1, 0}};
  for (const auto& [clip, skipped] : clips) {
    std::vector<WorkerOutcome> of_star;
    for (const char* const exchange : {"star", "ring"}) {
      SCOPED_TRACE(exchange + std::string(", ") + std::to_string(clip));
      ServerConfig c = config(exchange);
      c.optimizer = {.name = "adam", .learning_rate = 0.1, .clip_norm = clip};
      c.apply = "worker";
      c.reduce.algorithm = "chain";
      c.nonfinite = "skip";
      c.goal = {.rounds = 12};
      auto specs = trial_workers_once_huge(5);
      for (WorkerSpec& spec : specs) {
        spec.exchange = exchange;
        spec.peers = transports();
      }
      const auto outcomes = train(c, specs, trial_data());
      if (of_star.empty()) of_star = outcomes;
      for (const WorkerOutcome& outcome : outcomes) {
        EXPECT_EQ(outcome.summary.skipped, skipped);
        EXPECT_EQ(outcome.summary.version, Version(13 - skipped));
        EXPECT_TRUE(same_bits(outcome.params, of_star.front().params));
        EXPECT_EQ(outcome.summary.optimizer_fingerprint,
                  of_star.front().summary.optimizer_fingerprint);
      }
    }
  }
}

TEST_P(RingTest, EveryAlgorithmLearnsAndRepeats) {
  const auto data = make_blobs(100, 8, 4, 2);
  for (const char* algorithm : {"auto", "ring", "recursive-doubling", "chain"}) {
    SCOPED_TRACE(algorithm);
    ServerConfig c = config();
    c.goal.epochs = 8;
    c.reduce.algorithm = algorithm;
    const auto outcomes = train(c, 3, data);
    EXPECT_GT(outcomes[0].summary.test_accuracy, 0.8);
    c.run_dir += "-again";
    EXPECT_TRUE(same_bits(train(c, 3, data)[0].params, outcomes[0].params));
  }
}

TEST_P(RingTest, SelectionsHaveTheBitsOfStar) {
  const auto data = make_blobs(100, 8, 4, 5);
  for (const auto& [codec, optimizer] :
       {std::pair{"topk:0.1", "sgd"}, std::pair{"topk:0.1,scope=global", "sgd"},
        std::pair{"topk:0.05,momentum=0.9", "sgd"}, std::pair{"topk:0.1", "adamw"},
        std::pair{"topk:0.1,scope=global", "adamw"}}) {
    SCOPED_TRACE(std::string(codec) + ", " + optimizer);
    codec_ = codec;
    ServerConfig star = config("star"), ring = config();
    star.optimizer.name = ring.optimizer.name = optimizer;
    EXPECT_TRUE(same_bits(train(star, 4, data)[0].params, train(ring, 4, data)[0].params));
  }
}

TEST_P(RingTest, EveryCodecLearnsAndRepeats) {
  const auto data = make_blobs(100, 8, 4, 2);
  for (const char* codec : {"bf16", "int8", "int8:feedback=on", "sign", "topk:0.2,values=int8"}) {
    SCOPED_TRACE(codec);
    codec_ = codec;
    ServerConfig c = config(codec_ == "bf16" ? "hierarchical" : "ring");
    c.goal.epochs = 8;
    const auto outcomes = train(c, 3, data);
    EXPECT_GT(outcomes[0].summary.test_accuracy, 0.8);
    c.run_dir += "-again";
    EXPECT_TRUE(same_bits(train(c, 3, data)[0].params, outcomes[0].params));
  }
}

TEST_P(RingTest, ACheckpointHasTheSlotsOfTheWorkers) {
  const auto data = make_blobs(100, 8, 4, 3);
  ServerConfig c = config();
  c.optimizer.name = "adam";
  c.goal.epochs = 4;
  const auto whole = train(c, 2, data);
  c = config();
  c.optimizer.name = "adam";
  train(c, 2, data);
  c.goal.epochs = 4;
  c.resume = true;
  EXPECT_TRUE(same_bits(train(c, 2, data)[0].params, whole[0].params));
}

TEST_P(RingTest, ABreakAtEveryOperationBetweenPeersEndsWell) {
  const auto data = make_blobs(48, 8, 4, 10);
  struct Breaks {
    const char* codec;
    Action action;
    std::uint64_t every;
  };
  for (const Breaks& breaks :
       {Breaks{"f32", Action::kCut, 1}, Breaks{"f32", Action::kFail, 7},
        Breaks{"f32", Action::kTruncate, 7}, Breaks{"topk:0.2,values=int8", Action::kCut, 2},
        Breaks{"topk:0.2,values=int8", Action::kTruncate, 9}}) {
    codec_ = breaks.codec;
    for (std::uint64_t n = 0; n < 60; n += breaks.every) {
      SCOPED_TRACE(codec_ + ", action " + std::to_string(static_cast<int>(breaks.action)) +
                   " at operation " + std::to_string(n));
      ServerConfig c = config();
      c.workers.min = 2;
      expect_good_end(c, data, transports(), faulty(breaks.action, n));
      if (HasFailure()) return;
    }
  }
}

TEST_P(RingTest, ABreakAtEveryOperationWithTheServerEndsWell) {
  const auto data = make_blobs(48, 8, 4, 11);
  for (const Action action : {Action::kCut, Action::kFail, Action::kCorrupt}) {
    for (std::uint64_t n = 0; n < 40; n += action == Action::kCut ? 1 : 5) {
      SCOPED_TRACE("action " + std::to_string(static_cast<int>(action)) + " at operation " +
                   std::to_string(n));
      ServerConfig c = config();
      c.workers.min = 2;
      expect_good_end(c, data, faulty(action, n), transports());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace centroid::test::ring_test
