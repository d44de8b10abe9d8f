// The CUDA kernels of the codecs, run on the CPU by tests/support/simt.h, against the CPU's codecs:
// the same bytes. The CPU device stands for the GPU. tests/gpu runs the same comparisons on a GPU.

// clang-format off
#include "tests/support/simt.h"  // before the kernels
// clang-format on

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/cuda/select.cuh"
#include "tests/support/device_codec_cases.h"

namespace centroid {
namespace {

class CudaKernels : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
    simt::use_seed(static_cast<std::uint64_t>(GetParam()));
  }
  std::unique_ptr<Device> device_ = make_device("cpu").value();
  device_cases::Machine machine_{*device_};
};

TEST_P(CudaKernels, SelectTheSameAsTheCpu) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  const std::vector<std::uint64_t> even{0, 31, 255, 8192, 8193}, odd{1, 33, 1000, 70'001};
  for (const std::uint64_t n : seed % 2 == 0 ? even : odd)
    device_cases::compare_selections(machine_, n, seed);
}

TEST_P(CudaKernels, CountSumsThatAreNotFiniteAndNameTheFirst) {
  device_cases::compare_nonfinite(machine_, 9001, static_cast<std::uint64_t>(GetParam()));
}

TEST_P(CudaKernels, EncodeTheSameBytesAsTheCpuAndKeepTheSameRest) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  for (const std::uint64_t n : {0u, 1u, 7u, 8u, 9u, 255u, 256u, 257u, 2048u, 5003u})
    device_cases::compare_dense(machine_, n, seed);
}

TEST_P(CudaKernels, AddMagnitudesOfSignsInTheOrderOfTheCpu) {
  device_cases::compare_order_of_signs(machine_);
}

TEST(DeviceCodec, RefusesWhatItCannotSend) {
  const auto device = make_device("cpu").value();
  device_cases::Machine machine(*device);
  device_cases::compare_refusals(machine);
}

TEST_P(CudaKernels, FollowTheCpuThroughRoundsOfErrorFeedback) {
  device_cases::compare_rounds(machine_, 3001, static_cast<std::uint64_t>(GetParam()));
}

/// As many tiles as 40 million numbers have.
TEST(CudaSelection, SumsUpTheTilesBeforeEachOne) {
  constexpr std::uint64_t kTiles = 5003;
  CounterRng random(3);
  std::vector<cuda::Wide> tiles(kTiles), expected(kTiles);
  cuda::Wide sum = 0;
  for (std::uint64_t t = 0; t < kTiles; ++t) {
    tiles[t] = random.below(8193) << 32 | random.below(8193);
    expected[t] = sum;
    sum += tiles[t];
  }
  cuda::SelectState state{};
  state.k = 7;
  cuda::SelectSummary summary;
  const cuda::SelectMemory memory{&state, nullptr, nullptr, tiles.data()};
  simt::launch(1, cuda::kThreads, [&] { cuda::offsets_kernel<>(kTiles, memory, &summary); });
  EXPECT_EQ(tiles, expected);
  EXPECT_EQ(summary.count, 7u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaKernels, ::testing::Values(1, 2));

}  // namespace
}  // namespace centroid
