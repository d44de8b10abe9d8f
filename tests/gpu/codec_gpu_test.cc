// The codecs' kernels on a GPU against the CPU's codecs: the same bytes.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/device/cuda/cuda_device.h"
#include "common/device/device.h"
#include "tests/gpu/gpu.h"
#include "tests/support/device_codec_cases.h"

namespace centroid {
namespace {

constexpr std::uint64_t kSeed = 11;

class GpuCodec : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    RecordProperty("seed", static_cast<int>(kSeed));
    auto made = make_device(test::gpu_name());
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    device_ = std::move(made).value();
    machine_ = std::make_unique<device_cases::Machine>(*device_);
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<device_cases::Machine> machine_;
};

TEST_F(GpuCodec, SelectsTheSameAsTheCpu) {
  for (const std::uint64_t n :
       {0u, 1u, 31u, 33u, 1000u, 8191u, 8192u, 8193u, 100'003u, 16'777'217u})
    device_cases::compare_selections(*machine_, n, kSeed);
}

TEST_F(GpuCodec, CountsSumsThatAreNotFiniteAndNamesTheFirst) {
  for (const std::uint64_t n : {300u, 9001u, 1'000'003u})
    device_cases::compare_nonfinite(*machine_, n, kSeed);
}

TEST_F(GpuCodec, EncodesTheSameBytesAsTheCpuAndKeepsTheSameRest) {
  for (const std::uint64_t n : {0u, 1u, 7u, 8u, 9u, 255u, 256u, 257u, 5003u, 262'144u, 1'000'003u})
    device_cases::compare_dense(*machine_, n, kSeed);
}

TEST_F(GpuCodec, AddsMagnitudesOfSignsInTheOrderOfTheCpu) {
  device_cases::compare_order_of_signs(*machine_);
}

TEST_F(GpuCodec, FollowsTheCpuThroughRoundsOfErrorFeedback) {
  for (const std::uint64_t n : {3001u, 300'007u}) device_cases::compare_rounds(*machine_, n, kSeed);
}

TEST_F(GpuCodec, RefusesWhatItCannotSend) { device_cases::compare_refusals(*machine_); }

/// More than 2^31 numbers: 8.6 GB of them, all 0 but for some, so that the answer is known.
TEST_F(GpuCodec, SelectsFromMoreThanTwoToTheThirtyOneNumbers) {
  constexpr std::uint64_t kNumbers = (std::uint64_t{1} << 31) + 12'345, kEvery = 1'000'003;
  auto memory = device_->allocate(kNumbers * sizeof(float));
  auto scratch = device_->allocate(cuda::select_bytes(kNumbers));
  if (!memory.ok() || !scratch.ok())
    GTEST_SKIP() << "9.3 GB are not free on the GPU: "
                 << (memory.ok() ? scratch.error() : memory.error()).to_string();
  const auto stream = device_->make_stream().value();
  auto* x = reinterpret_cast<float*>((*memory)->data());
  std::vector<float> values;
  for (std::uint64_t i = kEvery - 1; i < kNumbers; i += kEvery) {
    values.push_back(static_cast<float>(values.size() % 7 + 1));
    ASSERT_TRUE(stream
                    ->copy(reinterpret_cast<std::byte*>(x + i),
                           reinterpret_cast<const std::byte*>(&values.back()), sizeof(float))
                    .ok());
  }
  ASSERT_TRUE(stream->wait().ok());
  const auto expected =
      static_cast<std::uint64_t>(std::ranges::count_if(values, [](float v) { return v >= 6; }));
  const auto index = device_->allocate_pinned(expected * sizeof(std::uint32_t)).value();
  const auto value = device_->allocate_pinned(expected * sizeof(float)).value();
  const auto summary = device_->allocate_pinned(sizeof(cuda::SelectSummary)).value();
  cuda::SelectArguments of;
  of.add.x = x;
  of.n = kNumbers;
  of.k = expected;
  of.memory = (*scratch)->data();
  of.index = reinterpret_cast<std::uint32_t*>(index->data());
  of.value = reinterpret_cast<float*>(value->data());
  of.summary = reinterpret_cast<cuda::SelectSummary*>(summary->data());
  const Status selected = cuda::select(of, cuda::queue_of(*device_, *stream));
  ASSERT_TRUE(selected.ok()) << selected.error().to_string();
  ASSERT_TRUE(stream->wait().ok());
  ASSERT_EQ(of.summary->count, expected);
  std::uint64_t j = 0;
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    if (values[i] < 6) continue;
    ASSERT_EQ(of.index[j], (i + 1) * kEvery - 1);
    ASSERT_EQ(of.value[j++], values[i]);
  }
}

}  // namespace
}  // namespace centroid
