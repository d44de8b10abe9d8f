#include "server/service/buffers.h"

#include <cmath>
#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/permutation.h"
#include "common/optim/norm.h"
#include "tests/support/in_process.h"
#include "tests/support/test_shard.h"
#include "worker/loop/epoch_order.h"

/// Buffers (common/tensor/tensor.h) of batch normalisation in clusters within one process: after
/// each round they are the weighted mean of what the workers have, however gradients travel and
/// whoever steps.
namespace centroid::test {
namespace {

using server::ServerConfig;
using ::testing::HasSubstr;

constexpr const char* kModel = "mlp:8-16-6-4,gelu,norm=batch";
constexpr std::uint64_t kSamples = 203;

/// The same training written anew: one device after the other, means and buffers in double, the
/// optimizer over all that is trained at once.
struct ByHand {
  std::vector<float> params;
  double apart = 0;  ///< largest distance of a worker's new buffer from the mean
};
ByHand by_hand(const OptimizerConfig& config, const std::vector<WorkerSpec>& workers,
               const worker::DataSplit& data, std::uint64_t rounds) {
  const auto model = worker::make_model(workers.front().model).value();
  const std::size_t trained = trained_elements(model->manifest());
  std::size_t n = 0, offset = 0;
  for (const auto& tensor : model->manifest()) n += tensor.elements();
  ByHand out;
  out.params.resize(n);
  model->initialize(1, out.params);
  const auto optimizer = make_optimizer(config).value();
  std::vector<std::vector<float>> memory(optimizer->slots(), std::vector<float>(trained));
  const std::vector<std::span<float>> slots(memory.begin(), memory.end());
  std::uint64_t wanted = 0;
  for (const auto& worker : workers) wanted += worker.batch;
  const auto order = permutation(kSamples, 1, 0);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::uint64_t left = kSamples - offset;
    std::vector<double> mean(n, 0);
    std::vector<std::vector<float>> changes;
    double total = 0;
    for (std::size_t k = 0; k < workers.size(); ++k) {
      const std::uint64_t share =
          wanted <= left ? workers[k].batch : part_of(left, workers.size(), k).size();
      const auto devices = static_cast<std::uint64_t>(std::ranges::count(workers[k].devices, ':'));
      for (std::uint64_t d = 0; d < devices; ++d) {
        const std::uint64_t samples = part_of(share, devices, d).size();
        std::vector<float> x, gradient(n);
        std::vector<std::uint32_t> y;
        for (std::uint64_t i = 0; i < samples; ++i, ++offset) {
          const auto from = data.train.x.begin() + static_cast<std::ptrdiff_t>(order[offset] * 8);
          x.insert(x.end(), from, from + 8);
          y.push_back(data.train.y[order[offset]]);
        }
        model->step({x, y, samples}, out.params, gradient, [](TensorId) {});
        for (std::size_t i = 0; i < n; ++i)
          mean[i] += static_cast<double>(samples) * static_cast<double>(gradient[i]);
        total += static_cast<double>(samples);
        changes.push_back(std::move(gradient));
      }
    }
    std::vector<float> gradient(n);
    for (std::size_t i = 0; i < n; ++i) gradient[i] = static_cast<float>(mean[i] / total);
    const std::span<float> to = std::span(out.params).first(trained);
    const std::span<float> slope = std::span(gradient).first(trained);
    const float factor = clip_factor(std::sqrt(sum_of_squares(slope)), config.clip_norm);
    for (float& g : slope) g *= factor;
    optimizer->step(round, to, slope, slots, to);
    for (std::size_t i = trained; i < n; ++i) {
      for (const auto& change : changes)
        out.apart = std::max(out.apart, std::abs(change[i] - mean[i] / total));
      out.params[i] = static_cast<float>(out.params[i] - mean[i] / total);
    }
  }
  EXPECT_LE(offset, kSamples) << "the test is for one epoch";
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double apart = std::abs(double{a[i]} - double{b[i]});
    largest = std::isfinite(apart) ? std::max(largest, apart) : HUGE_VAL;
  }
  return largest;
}

class Buffers : public ::testing::Test, protected InProcess {
 protected:
  ServerConfig config() {
    ServerConfig c = config_of_own();
    c.timeouts.lease = std::chrono::seconds(60);
    c.transfer.chunk_bytes = 64;  // a buffer is a chunk of its own
    c.reduce.bucket_bytes = 200;
    c.workers.min = 3;
    c.goal.rounds = 9;  // the ninth has what is left of the epoch
    return c;
  }
  /// Of unequal weight; the last one's share of the end of the epoch is short.
  std::vector<WorkerSpec> workers(const std::string& exchange = "star") {
    std::vector<WorkerSpec> specs(3);
    const std::uint64_t batches[] = {5, 11, 8};
    for (std::size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = "worker-" + std::to_string(i);
      specs[i].model = kModel;
      specs[i].batch = batches[i];
      specs[i].exchange = exchange;
      specs[i].peers = transports();
    }
    return specs;
  }
  std::vector<WorkerOutcome> train(const ServerConfig& c, const std::vector<WorkerSpec>& specs,
                                   const worker::RoundObserver& first = {}) {
    TestServer server(c, transports());
    auto outcomes = run_workers(specs, data_, server.endpoint(), transports(), first);
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_EQ(outcome.params, outcomes[0].params);
    }
    return outcomes;
  }

  const worker::DataSplit data_ = make_blobs(kSamples, 8, 4, 5);
};

struct Way {
  const char* name;
  std::function<void(ServerConfig&, std::vector<WorkerSpec>&)> set;
};

TEST_F(Buffers, AreTheWeightedMeanWhicheverWayTheyGo) {
  const std::vector<Way> ways{
      {"star", [](ServerConfig&, auto&) {}},
      {"apply worker", [](ServerConfig& c, auto&) { c.apply = "worker"; }},
      {"ring",
       [](ServerConfig& c, auto& specs) {
         c.exchange = "ring";
         for (auto& spec : specs) spec.exchange = "ring";
       }},
      {"hierarchical",
       [](ServerConfig& c, auto& specs) {
         c.exchange = "hierarchical";
         for (auto& spec : specs) spec.exchange = "hierarchical";
       }},
      {"devices",
       [](ServerConfig&, auto& specs) {
         specs[1].devices = "cpu:0,cpu:1,cpu:2";
         specs[2].devices = "cpu:0,cpu:1";
       }},
      {"quorum", [](ServerConfig& c, auto&) { c.policy = "quorum:3"; }},
  };
  std::vector<OptimizerConfig> optimizers(4);
  optimizers[0] = {.name = "sgd", .learning_rate = 0.3};
  optimizers[1] = {.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.3};
  optimizers[2] = {.name = "momentum", .learning_rate = 0.1, .schedule = "step:every=3"};
  optimizers[2].clip_norm = 0.2;
  optimizers[3] = {.name = "sgd", .learning_rate = 0.3};
  optimizers[3].clip_norm = 0.2;
  for (const OptimizerConfig& optimizer : optimizers)
    for (const Way& way : ways) {
      SCOPED_TRACE(std::string(way.name) + ", " + optimizer.name + ", clip " +
                   std::to_string(optimizer.clip_norm));
      ServerConfig c = config();
      auto specs = workers();
      c.optimizer = optimizer;
      way.set(c, specs);
      const auto outcomes = train(c, specs);
      const auto right = by_hand(optimizer, specs, data_, c.goal.rounds);
      EXPECT_LT(largest_difference(outcomes[0].params, right.params), 2e-4);
      EXPECT_GT(right.apart, 0.01);  // a worker's own buffers would be seen
    }
}

/// One worker alone without a network.
TEST_F(Buffers, WithoutANetworkTheStepsAreTheSame) {
  ServerConfig c = config();
  c.optimizer = {.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.3};
  c.optimizer.clip_norm = 0.2;
  c.workers.min = 1;
  auto specs = workers();
  specs.resize(1);
  specs[0].batch = 16;  // a power of two: weighing rounds nothing
  c.goal.rounds = 8;
  c.transfer.chunk_bytes = 1u << 20;  // of LocalOptions: norms are added by chunks
  const auto alone = run_local(kModel, data_, c, specs[0].batch);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error().to_string();
  EXPECT_LT(largest_difference(alone.params, by_hand(c.optimizer, specs, data_, 8).params), 2e-4);
  EXPECT_EQ(alone.params, train(c, specs)[0].params);
}

/// What a worker has behind a checkpoint or in the journal is what a job that was never stopped
/// has, bit for bit. A server whose folder is copied while it runs is one that was killed there.
TEST_F(Buffers, AJobThatWasStoppedOrKilledEndsWithTheSameBits) {
  const std::vector<Way> ways{
      {"adam on the server", [](ServerConfig& c, auto&) { c.optimizer.name = "adam"; }},
      {"sgd, clipped",
       [](ServerConfig& c, auto&) {
         c.optimizer.learning_rate = 0.3;
         c.optimizer.clip_norm = 0.2;
       }},
      {"momentum on the workers",
       [](ServerConfig& c, auto&) {
         c.optimizer.name = "momentum";
         c.apply = "worker";
       }},
      {"local steps",
       [](ServerConfig& c, auto& specs) {
         c.local.count = 3;
         for (auto& spec : specs) spec.inner = {.name = "sgd", .learning_rate = 0.05};
       }},
      {"codecs both ways",
       [](ServerConfig& c, auto& specs) {
         c.transfer.codec_down = "topk:0.2,warmup=30";
         c.optimizer.name = "momentum";
         c.optimizer.clip_norm = 0.2;
         for (auto& spec : specs) spec.codec = "int8";
       }},
  };
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    ServerConfig c = config();
    c.goal.rounds = 20;
    c.journal.mode = "on";
    c.run_id = "run";
    auto specs = workers();
    way.set(c, specs);
    const auto killed = directory_.path() / "killed" / std::to_string(runs_);
    const auto at_round = [&](const worker::Share& share, const auto&, const auto&, const auto&) {
      if (share.round.value != 11) return;
      std::filesystem::create_directories(killed.parent_path());
      std::filesystem::copy(c.run_dir, killed, std::filesystem::copy_options::recursive);
    };
    c.checkpoint.every_rounds = 4;
    const auto whole = train(c, specs, at_round);
    const auto held = CheckpointDirectory::open(killed / "checkpoints", 100).value().list(true);
    ASSERT_FALSE(held.empty());
    c.run_dir = killed;
    c.journal.dir = c.checkpoint.dir = "";
    c.resume = true;
    const auto resumed = train(c, specs);
    EXPECT_LT(resumed[0].summary.rounds, 12U);
    EXPECT_EQ(resumed[0].params, whole[0].params);
    // The checkpoint has them by the names of PyTorch.
    const auto last = CheckpointDirectory::open(killed / "checkpoints", 100).value();
    const auto manifest = last.manifest_of(last.list(true).front()).value();
    EXPECT_EQ(manifest, worker::make_model(kModel).value()->manifest());
    EXPECT_EQ(manifest.back().name, "norms.1.running_var");
  }
}

/// The workers' own buffers move with each of their steps, and so does what is normalised with them
/// in evaluation: a job with momentum outside learns to tell the classes apart.
TEST_F(Buffers, LocalStepsAverageThemWhateverTheOuterStepIs) {
  for (const auto& [outer, codec] :
       {std::pair{"nesterov", "f32"}, {"average", "f32"}, {"nesterov", "topk:0.2"}}) {
    SCOPED_TRACE(std::string(outer) + ", " + codec);
    ServerConfig c = config();
    c.local.count = 4;
    c.local.outer = outer;
    c.goal.rounds = 0;
    c.goal.epochs = 12;
    auto specs = workers();
    for (auto& spec : specs) {
      spec.codec = codec;
      spec.inner = {.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.1};
    }
    const auto outcomes = train(c, specs);
    EXPECT_GT(outcomes[0].summary.test_accuracy, 0.9);
    const auto manifest = worker::make_model(kModel).value()->manifest();
    std::size_t at = trained_elements(manifest);
    for (; at < outcomes[0].params.size(); ++at) EXPECT_TRUE(std::isfinite(outcomes[0].params[at]));
  }
}

/// What would bring buffers to wrong values is refused when a worker comes, by tensor, setting and
/// remedy; what makes no difference to other models.
TEST_F(Buffers, CombinationsThatCannotWorkAreRefused) {
  const Manifest manifest = worker::make_model(kModel).value()->manifest(),
                 plain = worker::make_model("mlp:8-16-4").value()->manifest();
  const auto why = [&](const auto& change) {
    ServerConfig c;
    change(c);
    EXPECT_TRUE(server::check_buffers(c, plain).ok());
    const Status checked = server::check_buffers(c, manifest);
    return checked.ok() ? std::string() : checked.error().message();
  };
  using C = ServerConfig;
  EXPECT_EQ(why([](C&) {}), "");
  EXPECT_EQ(why([](C& c) { c.policy = "backup:1"; }), "");
  EXPECT_EQ(why([](C& c) { c.aggregate = "median"; }), "");
  EXPECT_THAT(why([](C& c) { c.policy = "asp"; }),
              AllOf(HasSubstr("norms.0.running_mean"), HasSubstr("policy asp"),
                    HasSubstr("take policy bsp")));
  EXPECT_THAT(why([](C& c) { c.policy = "ssp:2"; }), HasSubstr("policy ssp:2"));
  EXPECT_THAT(why([](C& c) { c.policy = "quorum:1", c.late = "carry:max=2"; }),
              HasSubstr("set late to drop"));
  EXPECT_EQ(why([](C& c) { c.transfer.codec_down = "int8"; }), "");
  ServerConfig c = config();
  auto specs = workers();
  specs.resize(1);
  c.policy = "asp";
  c.workers.min = 1;
  TestServer server(c, transports());
  const auto refused = run_worker(specs[0], data_, server.endpoint(), transports());
  ASSERT_FALSE(refused.status.ok());
  EXPECT_THAT(refused.status.error().to_string(), HasSubstr("norms.0.running_mean"));
  server.stop();
  (void)server.join();
}

}  // namespace
}  // namespace centroid::test
