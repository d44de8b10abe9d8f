// Several GPUs in one worker, through the real NCCL, and one rank of it.

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"
#include "tests/gpu/gpu.h"
#include "worker/node/nccl_group.h"
#include "worker/node/replica_group.h"
#if __has_include(<nccl.h>)
#include <nccl.h>
#define CENTROID_HAS_NCCL_HEADER
#endif

namespace centroid::worker {
namespace {

#if defined(CENTROID_HAS_NCCL_HEADER)
// What nccl_library.h declares is what NCCL has.
static_assert(ncclSuccess == nccl::kSuccess && ncclInProgress == nccl::kInProgress);
static_assert(ncclFloat32 == nccl::kFloat32 && ncclSum == nccl::kSum);
static_assert(ncclScalarHostImmediate == nccl::kScalarOnHost);
static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int));
static_assert(sizeof(ncclRedOp_t) == sizeof(int));
static_assert(sizeof(ncclScalarResidence_t) == sizeof(int));
#endif

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
    // Several GPUs add through NCCL where it is, and on the host only where it is not.
    if (on != "cpu:0" && gpus > 1) {
      EXPECT_EQ(group->resident() != nullptr, !nccl.empty() && nccl::Library::load(nccl).ok());
    }
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

/// Of one rank: what a call takes and gives, the operation that scales, which is freed before its
/// group ends, and an abort of what is under way.
TEST(RealNccl, OneRankAddsScalesMovesAndIsAborted) {
  SKIP_WITHOUT_GPU();
  auto library = nccl::Library::load();
  if (!library.ok()) GTEST_SKIP() << library.error().to_string();
  const auto group = NcclGroup::make(std::move(library).value(),
                                     {static_cast<int>(centroid::test::gpu_number())}, {})
                         .value();
  const auto device = make_device(centroid::test::gpu_name()).value();
  const auto stream = device->make_stream(Priority::kHigh).value();
  const std::vector<float> numbers{1, -2, 3, 40};
  const std::size_t bytes = numbers.size() * sizeof(float);
  const auto a = device->allocate(bytes).value(), b = device->allocate(bytes).value();
  const auto floats = [](DeviceMemory& memory) {
    return std::span(reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float));
  };
  const auto write = [&](DeviceMemory& to) {
    EXPECT_TRUE(
        stream->copy(to.data(), reinterpret_cast<const std::byte*>(numbers.data()), bytes).ok());
  };
  const auto read = [&](DeviceMemory& from) {
    std::vector<float> out(numbers.size());
    EXPECT_TRUE(group->wait(0, [&] { return stream->done(); }).ok());
    EXPECT_TRUE(stream->copy(reinterpret_cast<std::byte*>(out.data()), from.data(), bytes).ok());
    EXPECT_TRUE(stream->wait().ok());
    return out;
  };
  const std::array<std::span<float>, 1> in_place{floats(*a)};
  write(*a);
  ASSERT_TRUE(group->all_reduce(0, in_place, 3, 3, stream->native()).ok());
  EXPECT_EQ(read(*a), numbers);
  ASSERT_TRUE(group->all_reduce(0, in_place, 1, 2, stream->native()).ok());
  EXPECT_EQ(read(*a), (std::vector<float>{0.5, -1, 1.5, 20}));
  write(*a);
  ASSERT_TRUE(group->reduce_scatter(0, floats(*a), floats(*b), 1, 4, stream->native()).ok());
  EXPECT_EQ(read(*b), (std::vector<float>{0.25, -0.5, 0.75, 10}));
  ASSERT_TRUE(group->all_gather(0, floats(*a), floats(*b), stream->native()).ok());
  EXPECT_EQ(read(*b), numbers);
  ASSERT_TRUE(group->broadcast(0, in_place, 0, stream->native()).ok());
  EXPECT_EQ(read(*a), numbers);
  EXPECT_TRUE(group->settle().ok());
  const auto large = device->allocate(std::size_t{256} << 20).value();
  const std::array<std::span<float>, 1> long_one{floats(*large)};
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(group->all_reduce(0, long_one, 1, 2, stream->native()).ok());
  group->abort("a test");
  ASSERT_TRUE(group->failure().has_value());
  EXPECT_NE(group->failure()->message().find("a test"), std::string::npos);
  EXPECT_EQ(group->all_reduce(0, in_place, 1, 2, stream->native()).error().code(),
            ErrorCode::kAborted);
  ASSERT_TRUE(stream->wait().ok());  // and the GPU goes on
  write(*a);
  std::vector<float> after(numbers.size());
  ASSERT_TRUE(stream->copy(reinterpret_cast<std::byte*>(after.data()), a->data(), bytes).ok());
  ASSERT_TRUE(stream->wait().ok());
  EXPECT_EQ(after, numbers);
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
  options.devices = centroid::test::gpu_name();
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
