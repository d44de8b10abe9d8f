// Optimizers' CUDA kernels against Optimizer::step on the CPU: the same bits. Built twice: with
// tests/support/simt.h, which runs them on the CPU, and (CENTROID_TEST_GPU) for a GPU, which works
// on pinned memory.

#if defined(CENTROID_TEST_GPU)
#include "tests/gpu/gpu.h"
#else
#include "tests/support/simt.h"
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/device/device.h"
#include "common/optim/cuda/kernels.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"

namespace centroid {
namespace {

using Bits = std::vector<std::uint32_t>;

Bits bits_of(std::span<const float> values) {
  Bits bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

std::vector<float> random_numbers(std::size_t n, std::uint64_t stream, double spread) {
  CounterRng rng(7, stream);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(spread * rng.normal());
  return out;
}

/// The seed decides the order of threads, and whether arrays stand on a 16-byte boundary.
class OptimizerCuda : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
#if defined(CENTROID_TEST_GPU)
    SKIP_WITHOUT_GPU();
    device_ = make_device(test::gpu_name()).value();
#else
    simt::use_seed(static_cast<std::uint64_t>(GetParam()));
    device_ = make_device("cpu").value();
#endif
    stream_ = device_->make_stream().value();
    queue_ = {std::max(device_->processors(), 2u), stream_->native()};
  }
  struct Array {
    std::unique_ptr<DeviceMemory> memory;
    std::span<float> values;
  };
  Array array(std::span<const float> from) const {
    Array out{device_->allocate_pinned((from.size() + 1) * sizeof(float)).value(), {}};
    auto* const first = reinterpret_cast<float*>(out.memory->data()) + GetParam() % 2;
    out.values = {first, from.size()};
    std::ranges::copy(from, first);
    return out;
  }
  void run(const Status& queued) {
    const Status status = queued.ok() ? stream_->wait() : queued;
    ASSERT_TRUE(status.ok()) << status.error().to_string();
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  cuda::Queue queue_;
};

TEST_P(OptimizerCuda, StepsAreTheCpusBitForBit) {
  for (const std::string& name : optimizer_names())
    for (const double decay : {0.0, 0.01}) {
      if (name == "mean" && decay > 0) continue;
      OptimizerConfig config{.name = name, .learning_rate = 0.03, .weight_decay = decay};
      config.l1 = 0.002;
      const auto optimizer = make_optimizer(config).value();
      for (const std::size_t n : {0, 1, 3, 4, 7, 1023, 5001}) {
        SCOPED_TRACE(name + ", decay " + std::to_string(decay) + ", " + std::to_string(n));
        auto right = random_numbers(n, 1, 0.5);
        const auto zeros = std::vector<float>(n);
        std::vector<std::vector<float>> right_slots(optimizer->slots(), zeros);
        const auto params = array(right);
        std::vector<Array> slots;
        cuda::UpdateArguments of{.n = n, .params = params.values.data()};
        for (std::size_t k = 0; k < right_slots.size(); ++k) {
          slots.push_back(array(zeros));
          of.slots[k] = slots[k].values.data();
        }
        for (std::uint64_t step = 1; step <= 3; ++step) {
          auto g = random_numbers(n, 10 + step, 0.1);
          if (n > 2) g[2] = 0;
          const auto gradient = array(g);
          of.rule = optimizer->at(step);
          of.gradient = gradient.values.data();
          run(cuda::update(of, queue_));
          const std::vector<std::span<float>> spans(right_slots.begin(), right_slots.end());
          optimizer->step(step, right, g, spans, right);
          ASSERT_EQ(bits_of(params.values), bits_of(right)) << "step " << step;
          for (std::size_t k = 0; k < slots.size(); ++k)
            ASSERT_EQ(bits_of(slots[k].values), bits_of(right_slots[k])) << "slot " << k;
        }
      }
    }
}

TEST_P(OptimizerCuda, TheNormIsTheCpusBitForBitAndClipsOnTheDevice) {
  const auto optimizer = make_optimizer({.name = "sgd", .learning_rate = 0.1}).value();
  for (const std::size_t n : {0, 1, 4, 127, 4095, 4096, 4097, 300'001}) {
    for (const double spread : {1e-22, 1.0, 1e19}) {
      SCOPED_TRACE(std::to_string(n) + " numbers of " + std::to_string(spread));
      auto g = random_numbers(n, 3, spread);
      const auto gradient = array(g), params = array(std::vector<float>(n, 0.25f));
      const double norm = std::sqrt(sum_of_squares(g));
      const auto memory = device_->allocate_pinned(cuda::clip_bytes(n)).value();
      const auto* const clip = reinterpret_cast<const cuda::Clip*>(memory->data());
      for (const double bound : {0.5 * norm, norm, 2 * norm + 1}) {
        run(cuda::clip(gradient.values.data(), n, bound, memory->data(), queue_));
        EXPECT_EQ(clip->norm, norm);
        EXPECT_EQ(clip->factor, clip_factor(norm, bound));
        EXPECT_EQ(clip->factor < 1, n > 0 && bound < norm);
      }
      run(cuda::clip(gradient.values.data(), n, 0.5 * norm, memory->data(), queue_));
      run(cuda::update({.rule = optimizer->at(1),
                        .n = n,
                        .gradient = gradient.values.data(),
                        .factor = &clip->factor,
                        .params = params.values.data()},
                       queue_));
      std::vector<float> right(n, 0.25f);
      for (float& x : g) x *= clip_factor(norm, 0.5 * norm);
      optimizer->step(1, right, g, {}, right);
      EXPECT_EQ(bits_of(params.values), bits_of(right));
    }
  }
}

TEST_P(OptimizerCuda, ANormThatIsNotFiniteClipsNothing) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto g = random_numbers(5000, 3, 1);
    g[4999] = bad;
    const auto gradient = array(g);
    const auto memory = device_->allocate_pinned(cuda::clip_bytes(g.size())).value();
    const auto* const clip = reinterpret_cast<const cuda::Clip*>(memory->data());
    run(cuda::clip(gradient.values.data(), g.size(), 1, memory->data(), queue_));
    EXPECT_FALSE(std::isfinite(clip->norm));
    EXPECT_EQ(clip->factor, 1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, OptimizerCuda, ::testing::Values(2, 5));

#if !defined(CENTROID_TEST_GPU)
/// Against the plain sum in the order of the numbers.
TEST(SumOfSquares, IsTheSumOfSquares) {
  for (const std::size_t n : {0, 1, 128, 4100, 3'000'000}) {
    const auto x = random_numbers(n, 5, 2);
    long double right = 0;
    for (const float v : x) right += static_cast<long double>(v) * static_cast<long double>(v);
    EXPECT_NEAR(sum_of_squares(x), static_cast<double>(right), 1e-13 * static_cast<double>(right));
  }
}
#endif

}  // namespace
}  // namespace centroid
