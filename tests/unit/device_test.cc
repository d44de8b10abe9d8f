#include "common/device/device.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/device/blas.h"
#include "common/device/host_memory.h"

namespace centroid {
namespace {

using testing::HasSubstr;

std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  CounterRng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(2.0 * rng.uniform() - 1.0);
  return out;
}

TEST(CpuDevice, MemoryIsAlignedZeroedAndAsLongAsAsked) {
  const auto device = make_device("cpu:3");
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->name(), "cpu:3");
  EXPECT_TRUE((*device)->is_host());
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 100'003U}) {
    const auto memory = (*device)->allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ((*memory)->size(), bytes);
    ASSERT_NE((*memory)->data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*memory)->data()) % 64, 0U);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ((*memory)->data()[i], std::byte{0});
  }
}

TEST(CpuDevice, MoreMemoryThanThereCanBeIsAnError) {
  const auto device = make_device("cpu");
  ASSERT_TRUE(device.ok());
  const auto memory = (*device)->allocate(std::numeric_limits<std::size_t>::max());
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(memory.error().message(), HasSubstr("cpu:0"));
}

TEST(CpuDevice, StreamCopies) {
  const auto device = make_device("cpu");
  ASSERT_TRUE(device.ok());
  const auto stream = (*device)->make_stream();
  ASSERT_TRUE(stream.ok());
  const auto from = random_values(1000, 1);
  std::vector<float> to(1000);
  ASSERT_TRUE((*stream)
                  ->copy(reinterpret_cast<std::byte*>(to.data()),
                         reinterpret_cast<const std::byte*>(from.data()), 4000)
                  .ok());
  ASSERT_TRUE((*stream)->copy(nullptr, nullptr, 0).ok());
  ASSERT_TRUE((*stream)->wait().ok());
  EXPECT_EQ(to, from);
}

TEST(MakeDevice, RefusesWhatItDoesNotKnow) {
  for (const char* spec :
       {"", "cpu:", "cpu:-1", "cpu:x", "cpu:1x", "cpu:1024", "cpus", "gpu:0", "cuda:x", " cpu"}) {
    const auto device = make_device(spec);
    ASSERT_FALSE(device.ok()) << spec;
    EXPECT_EQ(device.error().code(), ErrorCode::kInvalidArgument) << spec;
    EXPECT_THAT(device.error().message(), HasSubstr("cpu:N"));
  }
}

TEST(MakeDevice, SaysWhyThereIsNoGpu) {
  const auto device = make_device("cuda:0");
  if (device.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(device.error().message(), HasSubstr("'cuda:0'"));
  if (cuda_release().empty()) {
    EXPECT_EQ(device.error().code(), ErrorCode::kUnimplemented);
  } else {
    EXPECT_EQ(device.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(device.error().message(), HasSubstr("cudaGetDeviceCount: "));
  }
}

TEST(CpuDevice, StreamIsDoneAtOnce) {
  const auto device = make_device("cpu").value();
  const auto stream = device->make_stream().value();
  EXPECT_TRUE(*stream->done());
  EXPECT_EQ(stream->native(), nullptr);
  EXPECT_EQ(device->processors(), 1U);
}

TEST(HostMemory, OfACpuIsPlainAndNothingIsKept) {
  const auto device = make_device("cpu").value();
  HostMemory memory(*device, std::size_t{1} << 30);
  {
    const Buffer a = memory.take(100);
    EXPECT_EQ(a.size(), 100U);
    EXPECT_EQ(memory.use().pinned, 0U);
  }
  EXPECT_EQ(memory.use().unused, 0U);
  EXPECT_EQ(memory.use().refused, 0U);
  EXPECT_THROW((void)memory.take(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
}

struct GemmCase {
  std::size_t m, n, k;
};

TEST(Gemm, EqualsTheDefinitionForEveryTranspositionAndStride) {
  for (const auto [m, n, k] : {GemmCase{1, 1, 1}, {3, 5, 7}, {17, 33, 9}, {64, 10, 50}}) {
    for (int form = 0; form < 4; ++form) {
      const bool ta = (form & 1) != 0;
      const bool tb = (form & 2) != 0;
      const std::size_t lda = (ta ? m : k) + 2;
      const std::size_t ldb = (tb ? k : n) + 1;
      const std::size_t ldc = n + 3;
      const auto a = random_values((ta ? k : m) * lda, 1);
      const auto b = random_values((tb ? n : k) * ldb, 2);
      const auto before = random_values(m * ldc, 3);
      auto c = before;
      blas::gemm(ta, tb, m, n, k, 0.5F, a.data(), lda, b.data(), ldb, 2.0F, c.data(), ldc);
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < ldc; ++j) {
          double expected = before[i * ldc + j];
          if (j < n) {
            double sum = 0;
            for (std::size_t l = 0; l < k; ++l)
              sum += double{ta ? a[l * lda + i] : a[i * lda + l]} *
                     double{tb ? b[j * ldb + l] : b[l * ldb + j]};
            expected = 0.5 * sum + 2.0 * expected;
          }
          ASSERT_NEAR(c[i * ldc + j], expected, 1e-5) << m << " " << n << " " << k << " " << form;
        }
    }
  }
}

TEST(Gemm, WithBetaZeroForgetsWhatWasThere) {
  const std::vector<float> a = {1, 2};
  std::vector<float> c(1, std::numeric_limits<float>::quiet_NaN());
  blas::gemm(false, true, 1, 1, 2, 1.0F, a.data(), 2, a.data(), 2, 0.0F, c.data(), 1);
  EXPECT_EQ(c[0], 5.0F);
}

TEST(Gemm, WithoutRowsOrColumnsTouchesNothing) {
  std::vector<float> c = {7};
  blas::gemm(false, false, 0, 1, 1, 1.0F, c.data(), 1, c.data(), 1, 0.0F, c.data(), 1);
  blas::gemm(false, false, 1, 0, 1, 1.0F, c.data(), 1, c.data(), 1, 0.0F, c.data(), 1);
  EXPECT_EQ(c[0], 7.0F);
}

TEST(Gemm, ThreadsAtOnceGetTheBitsOfOneThread) {
  constexpr std::size_t kSide = 96;
  const auto a = random_values(kSide * kSide, 4);
  const auto b = random_values(kSide * kSide, 5);
  const auto product = [&](std::vector<float>& c) {
    c.assign(kSide * kSide, 0.0F);
    blas::gemm(false, true, kSide, kSide, kSide, 1.0F, a.data(), kSide, b.data(), kSide, 0.0F,
               c.data(), kSide);
  };
  std::vector<float> expected;
  product(expected);
  std::vector<int> differences(4);
  {
    std::vector<std::jthread> threads;
    for (int& count : differences)
      threads.emplace_back([&] {
        std::vector<float> c;
        for (int repeat = 0; repeat < 20; ++repeat) {
          product(c);
          count += c != expected;
        }
      });
  }
  EXPECT_THAT(differences, testing::Each(0));
}

TEST(Blas, SaysWhatItIs) {
  blas::set_threads(1);
  EXPECT_STRNE(blas::version(), "");
}

}  // namespace
}  // namespace centroid
