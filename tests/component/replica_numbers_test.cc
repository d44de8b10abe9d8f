#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "tests/support/in_process.h"
#include "worker/model/transformer.h"

/// Workers' replicas are bit-identical: parameters, adapters, optimizer; and no sample is left out.
namespace centroid::test {
namespace {

using server::ServerConfig;
using ::testing::HasSubstr;
using worker::Transformer;
using worker::TransformerConfig;

worker::Dataset random_text(std::uint64_t samples, std::uint64_t context, std::uint32_t vocabulary,
                            std::uint64_t seed) {
  CounterRng rng(seed);
  worker::Dataset data;
  data.name = "text";
  data.samples = samples;
  data.features = context;
  data.classes = data.vocabulary = vocabulary;
  data.token_begin = {0};
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t tokens = i + 1 == samples ? 3 : context + 1;  // the last one is short
    for (std::uint64_t k = 0; k < tokens; ++k)
      data.tokens.push_back(static_cast<std::uint32_t>(rng.below(vocabulary)));
    data.token_begin.push_back(data.tokens.size());
  }
  return data;
}

class ReplicaNumbers : public ::testing::Test, protected InProcess {
 protected:
  ServerConfig config(std::uint64_t workers) {
    ServerConfig c = config_of_own();
    c.workers.min = workers;
    return c;
  }
  std::vector<WorkerOutcome> train(const ServerConfig& c, const std::vector<WorkerSpec>& specs,
                                   const worker::DataSplit& data) {
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data, server.endpoint(), transports());
    EXPECT_TRUE(server.join().ok());
    for (const auto& outcome : outcomes)
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    last_ = server.workers();
    return outcomes;
  }

  std::vector<server::WorkerView> last_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// A classifier's weights and bias that are changed by 99 are those of the others after the join,
/// and after steps.
TEST_F(ReplicaNumbers, WeightsAndBiasOfAChangedClassifierAreThoseOfTheOthers) {
  const auto model = worker::make_model("mlp:8-16-4").value();
  const auto data = make_blobs(48, 8, 4, 3);
  for (const bool learns : {false, true}) {
    std::vector<WorkerSpec> specs(2);
    std::vector<float> changed;
    for (std::size_t i = 0; i < 2; ++i) {
      auto custom = std::make_shared<CustomModel>();
      custom->manifest = model->manifest();
      custom->initialize = [&](std::uint64_t seed, std::span<float> params) {
        model->initialize(seed, params);
      };
      custom->make_group = [&, i] {
        auto group = worker::make_replica_group(*model, {.devices = "cpu:0,cpu:1"}).value();
        model->initialize(1, group->params());
        const std::size_t head = 16 * 4 + 4;
        if (i == 1)
          for (float& p : group->params().last(head)) p += 99;
        if (i == 1) changed.assign(group->params().begin(), group->params().end());
        return group;
      };
      specs[i].name = i == 0 ? "plain" : "changed";
      specs[i].custom = custom;
      specs[i].batch = 4;
    }
    ServerConfig c = config(2);
    c.goal.rounds = 3;
    c.optimizer.learning_rate = learns ? 0.1 : 0;
    const auto outcomes = train(c, specs, data);
    EXPECT_TRUE(same_bits(outcomes[0].params, outcomes[1].params));
    std::vector<float> initial(changed.size());
    model->initialize(c.seed, initial);
    EXPECT_EQ(same_bits(outcomes[1].params, initial), !learns);
    for (std::size_t k = initial.size() - 4; k < initial.size(); ++k) {
      EXPECT_NEAR(changed[k], 99, 1e-3);  // the bias begins at 0
      EXPECT_LT(std::abs(outcomes[1].params[k]), 1);
    }
  }
}

/// A worker whose adapters and head are changed by 42, 7 and 99 has those of the others after it
/// has joined; without that it has not.
TEST_F(ReplicaNumbers, AdaptersAndHeadOfAChangedReplicaAreThoseOfTheOthers) {
  const auto config_of =
      TransformerConfig::parse(
          "transformer:layers=2,width=8,heads=2,context=6,vocabulary=20,lora=2,norm=layer")
          .value();
  std::size_t whole = 0;
  for (const auto& tensor : config_of.whole()) whole += tensor.elements();
  CounterRng rng(3);
  std::vector<float> weights(whole);
  for (float& x : weights) x = 0.1f * static_cast<float>(rng.normal());
  const Transformer model(config_of, std::make_shared<worker::BaseWeights>(weights));
  std::vector<float> changed;  // what the second worker begins with
  const auto with_change = [&](bool is_changed) {
    auto custom = std::make_shared<CustomModel>();
    custom->manifest = model.manifest();
    custom->initialize = [&](std::uint64_t seed, std::span<float> params) {
      model.initialize(seed, params);
    };
    custom->make_group = [&, is_changed] {
      auto group = worker::make_replica_group(model, {.devices = "cpu:0"}).value();
      model.initialize(1, group->params());
      if (!is_changed) return group;
      std::size_t at = 0;
      for (const auto& tensor : model.manifest()) {
        const bool is_a = tensor.name.find("lora_A") != std::string::npos,
                   is_b = tensor.name.find("lora_B") != std::string::npos;
        for (std::size_t end = at + tensor.elements(); at < end; ++at)
          group->params()[at] += is_a ? 42.0f : is_b ? 7.0f : 99.0f;
      }
      changed.assign(group->params().begin(), group->params().end());
      return group;
    };
    return custom;
  };
  const worker::DataSplit data{random_text(24, 6, 20, 1), random_text(6, 6, 20, 2)};
  for (const char* const exchange : {"star", "ring"}) {
    SCOPED_TRACE(exchange);
    std::vector<WorkerSpec> specs(2);
    for (std::size_t i = 0; i < 2; ++i) {
      specs[i].name = i == 0 ? "plain" : "changed";
      specs[i].custom = with_change(i == 1);
      specs[i].batch = 4;
      specs[i].exchange = exchange;
      specs[i].peers = transports();
    }
    ServerConfig c = config(2);
    c.exchange = exchange;
    c.goal.rounds = 3;
    c.optimizer.learning_rate = 0;  // what they hold is what they were given
    const auto outcomes = train(c, specs, data);
    ASSERT_EQ(outcomes[0].params.size(), changed.size());
    EXPECT_TRUE(same_bits(outcomes[0].params, outcomes[1].params));
    std::vector<float> initial(changed.size());
    model.initialize(c.seed, initial);
    EXPECT_TRUE(same_bits(outcomes[1].params, initial));
    std::size_t at = 0;
    for (const auto& tensor : model.manifest()) {  // every one of them had been changed
      const auto part = [&](std::span<const float> all) {
        return all.subspan(at, tensor.elements());
      };
      EXPECT_FALSE(same_bits(part(changed), part(outcomes[0].params))) << tensor.name;
      at += tensor.elements();
    }
  }
}

/// Where the workers apply the optimizer, its slots and steps are the same bits on all of them.
TEST_F(ReplicaNumbers, OptimizersOfAllWorkersAreTheSame) {
  const auto data = make_blobs(100, 8, 4, 3);
  std::set<std::uint64_t> seen;
  for (const char* const exchange : {"star", "ring", "hierarchical"})
    for (const char* const optimizer : {"momentum", "adam"}) {
      SCOPED_TRACE(std::string(exchange) + " " + optimizer);
      std::vector<WorkerSpec> specs(3);
      for (std::size_t i = 0; i < specs.size(); ++i) {
        specs[i].name = "worker-" + std::to_string(i);
        specs[i].exchange = exchange;
        specs[i].peers = transports();
        specs[i].batch = 5 + i;
      }
      ServerConfig c = config(3);
      c.exchange = exchange;
      c.apply = "worker";
      c.goal.rounds = 30;
      c.optimizer = {.name = optimizer, .learning_rate = 0.01};
      const auto outcomes = train(c, specs, data);
      const auto print = [&](std::size_t i) { return outcomes[i].summary.optimizer_fingerprint; };
      EXPECT_NE(print(0), 0u);
      EXPECT_EQ(print(1), print(0));
      EXPECT_EQ(print(2), print(0));
      EXPECT_TRUE(same_bits(outcomes[1].params, outcomes[0].params));
      EXPECT_TRUE(same_bits(outcomes[2].params, outcomes[0].params));
      seen.insert(print(0));
    }
  EXPECT_GE(seen.size(), 2u);  // they tell optimizers apart
  ServerConfig c = config(1);
  c.goal.rounds = 3;
  WorkerSpec one;
  one.name = "a";
  EXPECT_EQ(train(c, {one}, data)[0].summary.optimizer_fingerprint, 0u);  // the server has it
}

/// Steps and speeds of a language model count its sequences, as batches do, not its tokens.
TEST_F(ReplicaNumbers, StepsOfALanguageModelAreBatches) {
  const worker::DataSplit data{random_text(60, 16, 20, 1), random_text(6, 16, 20, 2)};
  std::vector<std::vector<float>> params;
  for (const bool by_cluster : {false, true}) {
    ServerConfig c = config(1);
    c.goal.rounds = 8;
    c.local.count = 5;
    c.local.outer = "average";
    c.cadence.mode = "speed";
    WorkerSpec one;
    one.name = "a";
    one.model = "transformer:layers=1,width=8,heads=2,context=16,vocabulary=20";
    one.batch = 4;
    one.inner.learning_rate = 0.05;
    one.inner.schedule = "linear:rounds=30,floor=0.1,warmup=4";
    one.schedules_by_cluster = by_cluster;
    double fastest = INFINITY;  // step of a share, on average
    const auto observe = [&](const worker::Share&, const worker::StepStats& stats,
                             const worker::RoundReport&, const worker::TrainingSummary&) {
      fastest = std::min(fastest, stats.compute_seconds / 5);
    };
    TestServer server(c, transports());
    params.push_back(run_worker(one, data, server.endpoint(), transports(), observe).params);
    EXPECT_TRUE(server.join().ok());
    // The pace is smoothed over the shares. With tokens it would be a sixteenth.
    EXPECT_GE(server.workers().front().pace_seconds, 0.99 * fastest);
  }
  EXPECT_TRUE(same_bits(params[0], params[1]));
}

/// Two are wanted: one alone waits and says so.
TEST_F(ReplicaNumbers, TrainingBeginsWithTheSecondOfTwo) {
  const auto data = make_blobs(64, 8, 4, 1);
  ServerConfig c = config(2);
  c.goal.rounds = 3;
  TestServer server(c, transports());
  WorkerSpec first, second;
  first.name = "first";
  second.name = "second";
  std::vector<WorkerOutcome> outcomes(2);
  std::thread one([&] { outcomes[0] = run_worker(first, data, server.endpoint(), transports()); });
  EXPECT_TRUE(server.wait_until([](const server::ClusterView& view) {
    return view.state == "waiting" && view.state_reason.starts_with("1 of 2 workers");
  }));
  EXPECT_EQ(server.view().round, 1u);
  std::thread two([&] { outcomes[1] = run_worker(second, data, server.endpoint(), transports()); });
  one.join();
  two.join();
  EXPECT_TRUE(server.join().ok());
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok());
    EXPECT_EQ(outcome.summary.rounds, 3u);
  }
}

/// Whatever the sizes are, every sample of every epoch is trained once: no short batch is dropped.
TEST_F(ReplicaNumbers, NoTailIsDropped) {
  const std::uint64_t seed = 20261122;
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  for (int trial = 0; trial < 30; ++trial) {
    const std::uint64_t samples = 1 + rng.below(150), workers = 1 + rng.below(4), epochs = 2;
    const auto data = make_blobs(samples + 4, 8, 4, 1 + rng.below(1000));
    const std::uint64_t all = data.train.samples;
    ServerConfig c = config(workers);
    c.goal.epochs = epochs;
    c.local.count = 1 + rng.below(3) * rng.below(4);
    if (c.local.count > 1) c.local.outer = "average";
    c.cadence.mode = rng.below(2) == 0 ? "off" : "speed";
    c.exchange = rng.below(3) == 0 ? "ring" : "star";
    c.local.overlap = c.local.count > 1 && c.exchange == "star" ? rng.below(2) : 0;
    SCOPED_TRACE("trial " + std::to_string(trial) + ": " + std::to_string(all) + " samples, " +
                 std::to_string(workers) + " workers, local_steps " +
                 std::to_string(c.local.count) + ", overlap " + std::to_string(c.local.overlap) +
                 ", " + c.cadence.mode + ", " + c.exchange);
    std::vector<WorkerSpec> specs(workers);
    for (std::size_t i = 0; i < workers; ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].batch = 1 + rng.below(std::min<std::uint64_t>(all, 40));
      specs[i].exchange = c.exchange;
      specs[i].peers = transports();
      specs[i].devices = rng.below(2) == 0 ? "cpu:0" : "cpu:0,cpu:1";
    }
    TestServer server(c, transports());
    std::mutex mutex;
    std::vector<int> times(epochs * all, 0);
    std::uint64_t told = 0;
    std::vector<std::thread> threads;
    for (const WorkerSpec& spec : specs)
      threads.emplace_back([&] {
        const auto observe = [&](const worker::Share& share, const worker::StepStats& stats,
                                 const worker::RoundReport&, const worker::TrainingSummary&) {
          const std::lock_guard lock(mutex);
          told += stats.samples;
          for (std::uint64_t at = share.begin; at < share.end; ++at)
            ++times[share.epoch * all + at];
        };
        EXPECT_TRUE(run_worker(spec, data, server.endpoint(), transports(), observe).status.ok());
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(server.join().ok());
    for (std::size_t i = 0; i < times.size(); ++i)
      ASSERT_EQ(times[i], 1) << "position " << i % all << " of epoch " << i / all;
    ASSERT_EQ(told, epochs * all);  // and went through a step
    ASSERT_EQ(server.view().samples_total, epochs * all);
  }
}

}  // namespace
}  // namespace centroid::test
