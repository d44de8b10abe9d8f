// Several GPUs in one worker, through the real NCCL. With one GPU there is nobody to add with.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"
#include "tests/gpu/gpu.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

Dataset random_data(std::uint64_t samples) {
  CounterRng rng(1);
  Dataset data;
  data.name = "random";
  data.samples = samples;
  data.features = 64;
  data.classes = 10;
  for (std::uint64_t i = 0; i < samples * data.features; ++i)
    data.x.push_back(static_cast<float>(rng.normal()));
  for (std::uint64_t i = 0; i < samples; ++i)
    data.y.push_back(static_cast<std::uint32_t>(rng.below(10)));
  return data;
}

TEST(GpuGroup, AddsAsTheCpuDoes) {
  SKIP_WITHOUT_GPU();
  const unsigned gpus = cuda::device_count().value();
  const auto model = make_model("mlp:64-512-512-10").value();
  const Dataset data = random_data(256);
  std::vector<std::uint64_t> samples(256);
  std::iota(samples.begin(), samples.end(), 0);
  std::string devices = "cuda:0";
  for (unsigned i = 1; i < gpus; ++i) devices += ",cuda:" + std::to_string(i);
  const auto step = [&](const std::string& on, const std::string& nccl) {
    GroupOptions options;
    options.devices = on;
    options.nccl = nccl;
    const auto group = make_replica_group(*model, options).value();
    model->initialize(7, group->params());
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(group->step(data, samples, {}).ok());
    return std::vector<float>(group->gradients().begin(), group->gradients().end());
  };
  const auto right = step("cpu:0", "");
  float largest = 0;
  for (const float x : right) largest = std::max(largest, std::abs(x));
  for (const char* const nccl : {"libnccl.so.2", ""}) {
    const auto got = step(devices, nccl);
    for (std::size_t i = 0; i < right.size(); ++i)
      ASSERT_NEAR(got[i], right[i], 1e-4F * largest) << i << " of " << devices;
  }
}

/// One GPU: additions through NCCL need not give the same bits twice.
TEST(GpuGroup, AnOptimizerOnTheGpuGivesTheBitsOfTheHosts) {
  SKIP_WITHOUT_GPU();
  const auto model = make_model("mlp:64-512-512-10").value();
  const Dataset data = random_data(256);
  std::vector<std::uint64_t> samples(256);
  std::iota(samples.begin(), samples.end(), 0);
  const auto optimizer = make_optimizer({.name = "adamw", .learning_rate = 0.01}).value();
  GroupOptions options;
  options.devices = "cuda:0";
  const auto host = make_replica_group(*model, options).value();
  const auto group = make_replica_group(*model, options).value();
  model->initialize(7, host->params());
  ResidentTraining* const there = group->resident();
  ASSERT_NE(there, nullptr);
  ASSERT_TRUE(there->reserve(2).ok() && there->load(host->params()).ok());
  std::vector<std::vector<float>> slots(2, std::vector<float>(host->params().size()));
  constexpr double kBound = 0.1;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(host->step(data, samples, [](TensorId) {}).ok());
    const float factor = clip_factor(std::sqrt(sum_of_squares(host->gradients())), kBound);
    for (float& g : host->gradients()) g *= factor;
    const std::vector<std::span<float>> spans(slots.begin(), slots.end());
    optimizer->step(number, host->params(), host->gradients(), spans, host->params());
    const std::span<const std::uint64_t> batch = samples;
    const OptimizerStep step{optimizer->at(number), kBound};
    ASSERT_TRUE(there->advance(data, {&batch, 1}, {&step, 1}).ok());
  }
  std::vector<float> got(host->params().size());
  ASSERT_TRUE(there->store(got).ok());
  EXPECT_TRUE(std::ranges::equal(got, host->params()));
}

}  // namespace
}  // namespace centroid::worker
