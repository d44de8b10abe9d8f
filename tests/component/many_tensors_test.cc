#include <gtest/gtest.h>

#include "tests/support/custom_group.h"
#include "tests/support/test_shard.h"

/// A model of as many tensors as there may be, over sockets, on one server and on several.
namespace centroid::test {
namespace {

using server::ServerConfig;

constexpr std::uint64_t kTensors = 100'000, kRounds = 2;

/// Scalars, tensors without elements and small ones, with names as models with experts have them.
Manifest many_tensors() {
  Manifest manifest;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    Shape shape;  // a scalar
    if (i % 4 == 1) shape = {0, 3};
    if (i % 4 == 2) shape = {1 + i % 5};
    if (i % 4 == 3) shape = {2, 1, i % 3};
    std::string name = "model.layers.31.mlp.experts.";
    name.append(std::to_string(i)).append(".w1.weight");
    manifest.push_back({std::move(name), DType::kF32, shape});
  }
  return manifest;
}

float gradient(std::uint64_t i, std::uint64_t worker) {
  return static_cast<float>(worker == 0 ? i % 7 : i % 5);
}
float initial(std::uint64_t i) { return static_cast<float>(i % 11); }
/// After `rounds` of sgd with learning rate 0.5 and equal weights: nothing is rounded.
float expected(std::uint64_t i, std::uint64_t rounds) {
  const float mean = (gradient(i, 0) + gradient(i, 1)) / 2;
  return initial(i) - static_cast<float>(rounds) * 0.5f * mean;
}

/// Gradients that are numbers of their element and of the worker.
class NumberedGroup final : public CustomGroup {
 public:
  NumberedGroup(std::size_t elements, std::uint64_t worker) : CustomGroup(elements) {
    for (std::size_t i = 0; i < elements; ++i) gradients()[i] = gradient(i, worker);
  }
  Result<worker::GroupStep> step(const worker::Dataset&, std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    for (std::uint32_t tensor = kTensors; tensor-- > 0;) on_ready(TensorId(tensor));
    worker::GroupStep done;
    done.samples = samples.size();
    return done;
  }
};

void train_many_tensors(std::uint64_t servers) {
  ServerConfig config;
  config.run_dir = testing::TempDir() + "/many-tensors-" + std::to_string(servers);
  std::filesystem::remove_all(config.run_dir);
  config.workers.min = 2;
  config.goal.rounds = kRounds;
  config.leaving.when_finished = true;
  config.servers = servers;
  config.optimizer.name = "sgd";
  config.optimizer.learning_rate = 0.5;
  const Manifest manifest = many_tensors();
  std::uint64_t elements = 0;
  for (const TensorInfo& tensor : manifest) elements += tensor.elements();
  std::vector<WorkerSpec> specs(2);
  for (std::uint64_t i = 0; i < specs.size(); ++i) {
    auto model = std::make_shared<CustomModel>();
    model->manifest = manifest;
    model->make_group = [elements, i] { return std::make_unique<NumberedGroup>(elements, i); };
    model->initialize = [](std::uint64_t, std::span<float> params) {
      for (std::size_t k = 0; k < params.size(); ++k) params[k] = initial(k);
    };
    specs[i].name = std::string("w").append(std::to_string(i));
    specs[i].custom = std::move(model);
  }
  const auto data = make_blobs(64, 8, 4, 5);
  TestServer leader(config, tcp);
  std::vector<std::unique_ptr<TestShard>> shards;
  for (std::uint64_t i = 1; i < servers; ++i)
    shards.push_back(
        std::make_unique<TestShard>(std::string("s").append(std::to_string(i)), leader.endpoint()));
  const auto outcomes = run_workers(specs, data, leader.endpoint(), tcp);
  const Status ended = leader.join();
  EXPECT_TRUE(ended.ok()) << ended.error().to_string();
  for (const auto& shard : shards) EXPECT_TRUE(shard->join().ok());
  for (const WorkerOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
    ASSERT_EQ(outcome.params.size(), elements);
    for (std::size_t i = 0; i < elements; ++i)
      ASSERT_EQ(outcome.params[i], expected(i, kRounds)) << "element " << i;
  }
}

TEST(ManyTensors, AHundredThousandTrainOnOneServer) { train_many_tensors(1); }

TEST(ManyTensors, AHundredThousandTrainOnTwoServers) { train_many_tensors(2); }

}  // namespace
}  // namespace centroid::test
