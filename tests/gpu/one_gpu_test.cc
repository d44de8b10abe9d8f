// A worker with one GPU: what it takes of the memory, and a whole worker with a server within one
// process. Built twice (tests/support/test_gpu.h): for a GPU, and for what stands in for it.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/cuda/device_residual.h"
#include "tests/support/examples.h"
#include "tests/support/in_process.h"
#include "tests/support/test_gpu.h"
#include "worker/data/data_source.h"
#include "worker/node/replica_group.h"

namespace centroid::test::one_gpu_test {
namespace {

using namespace worker::test;
using testing::AllOf;
using testing::HasSubstr;

worker::GroupOptions options_of(const std::string& devices, std::uint64_t batch,
                                std::uint64_t load_ahead) {
  worker::GroupOptions options;
  options.devices = devices;
  options.batch = batch;
  options.load_ahead = load_ahead;
  options.bucket_bytes = 1024;
  options.open = open_gpu;
  return options;
}

class OneGpuMemory : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

/// More than any GPU has: refused with the numbers before anything is computed or taken.
TEST_F(OneGpuMemory, AStepThatDoesNotFitIsRefusedWithTheNumbers) {
  const auto model = worker::make_model("mlp:12-30000-5").value();
  constexpr std::uint64_t kBatch = 4'000'000;  // half a terabyte of activations
  const auto refused = worker::make_replica_group(*model, options_of(gpu_name(), kBatch, 0));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("device " + gpu_name() + ": a step of 4000000 samples takes "),
                    HasSubstr(" are free"), HasSubstr("Lower --batch")));
}

/// The first step is measured; from then on batches wait on the GPU, and some of it stays free.
TEST_F(OneGpuMemory, BatchesWaitOnTheGpuOnceAStepWasMeasured) {
  const auto model = worker::make_model("mlp:12-40-5").value();
  const worker::Dataset data = random_data(10'000, 3);
  Device* device = nullptr;
  worker::GroupOptions options = options_of(gpu_name(), 300, 8);
  options.open = [&](const std::string& spec, worker::Matmul matmul) {
    auto compute = open_gpu(spec, matmul);
    if (compute.ok()) device = compute->device.get();
    return compute;
  };
  testing::internal::CaptureStderr();
  const auto group = worker::make_replica_group(*model, options).value();
  model->initialize(7, group->params());
  const std::uint64_t free = device->room().value().free;
  const auto large = first(300), larger = first(2000);
  const std::vector<std::span<const std::uint64_t>> steps(20, large);
  ASSERT_TRUE(group->step(data, large, {}).ok());
  EXPECT_EQ(group->staged(), 0U);
  group->expect(data, steps);
  for (const auto& samples : steps) ASSERT_TRUE(group->step(data, samples, {}).ok());
  EXPECT_GT(group->staged(), 0U);
  EXPECT_GE(device->room().value().free, free / 10);
  const auto judged = group->evaluate(data, 0, 1000);  // beside batches that wait
  ASSERT_TRUE(judged.ok()) << judged.error().to_string();
  EXPECT_EQ(judged->samples, 1000U);
  group->expect(data, {larger, larger});  // a share that is larger than ever is rehearsed first
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(group->step(data, larger, {}).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("devices.calibrated"), HasSubstr("step_bytes="),
                    HasSubstr("batches_ahead=8")));
}

struct Way {
  const char* name;
  const char* codec = "f32";
  std::uint64_t local_steps = 1;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

class OneGpuWorker : public testing::TestWithParam<Way>, protected InProcess {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }

  /// The digits, where ./centroid build has put them; else something that can be learned as they.
  static worker::DataSplit digits() {
    worker::DataOptions options;
    options.spec = "digits";
    options.cache_dir = ".cache/data";
    auto split = worker::load_data(options);
    return split.ok() ? std::move(split).value() : make_blobs(1437, 64, 10, 3);
  }

  WorkerOutcome train(const std::string& devices, const worker::DataSplit& data, double& accuracy) {
    const Way& way = GetParam();
    server::ServerConfig c = config_of_own();
    c.run_id = "one";
    c.timeouts.lease = std::chrono::seconds(60);
    c.workers.min = 1;
    c.goal.epochs = 2;
    c.local.count = way.local_steps;
    if (way.local_steps > 1)
      c.local.outer = "average";
    else
      c.optimizer.learning_rate = 0.5;
    TestServer server(c, transports());
    const std::shared_ptr<worker::Model> model = worker::make_model(kModel).value();
    auto custom = std::make_shared<CustomModel>();
    custom->manifest = model->manifest();
    custom->initialize = [model](std::uint64_t seed, std::span<float> params) {
      model->initialize(seed, params);
    };
    custom->make_group = [model, devices] {
      return worker::make_replica_group(*model, options_of(devices, 32, 3)).value();
    };
    if (devices.starts_with("cuda"))
      custom->residual = [this](worker::ReplicaGroup& group, const std::string& codec,
                                const ChunkPlan& plan) -> Result<std::unique_ptr<DeviceResidual>> {
        const auto at = group.device_gradient();
        CENTROID_ASSIGN(auto residual, make_device_residual(codec, plan, at.gradient, *at.device));
        group.keep_gradient_on_device();
        ++residuals_;
        return residual;
      };
    WorkerSpec spec;
    spec.name = "a";
    spec.model = kModel;
    spec.batch = 32;
    spec.codec = way.codec;
    spec.inner.learning_rate = 0.5;
    spec.custom = custom;
    auto outcome = run_worker(spec, data, server.endpoint(), transports());
    const Status ended = server.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
    accuracy = server.view().test.accuracy;
    return outcome;
  }

  static constexpr const char* kModel = "mlp:64-16-10,relu";
  int residuals_ = 0;  ///< made on the GPU
};

TEST_P(OneGpuWorker, LearnsDigitsAsTheCpuDoes) {
  const worker::DataSplit data = digits();
  double accuracy = 0, of_cpu = 0;
  const WorkerOutcome gpu = train(gpu_name(), data, accuracy);
  const WorkerOutcome cpu = train("cpu:0", data, of_cpu);
  for (const WorkerOutcome* const outcome : {&gpu, &cpu})
    ASSERT_TRUE(outcome->status.ok()) << outcome->status.error().to_string();
  EXPECT_GT(accuracy, 0.7);
  EXPECT_NEAR(accuracy, of_cpu, 0.05);
  EXPECT_EQ(gpu.summary.rounds, cpu.summary.rounds);
  EXPECT_EQ(residuals_, GetParam().codec == std::string("f32") ? 0 : 1);
  // A number that one side sends and the other just not stays in one residual only.
  const double bound = GetParam().codec == std::string("f32") ? 1e-3 : 0.1;
  EXPECT_LE(difference(cpu.params, gpu.params), bound);
}

INSTANTIATE_TEST_SUITE_P(Ways, OneGpuWorker,
                         testing::Values(Way{.name = "every_step"},
                                         Way{.name = "topk", .codec = "topk:0.2"},
                                         Way{.name = "sign", .codec = "sign"},
                                         Way{.name = "local_steps", .local_steps = 8}),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace centroid::test::one_gpu_test
