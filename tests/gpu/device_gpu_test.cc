// Streams, events and memory of a CUDA device.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/device/cuda/cuda_device.h"
#include "common/device/device.h"
#include "common/device/host_memory.h"
#include "tests/gpu/gpu.h"

namespace centroid {
namespace {

using testing::HasSubstr;

class GpuDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    auto made = make_device(test::gpu_name());
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    device_ = std::move(made).value();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(GpuDevice, SaysWhatItIs) {
  EXPECT_EQ(device_->name(), test::gpu_name());
  EXPECT_FALSE(device_->is_host());
  EXPECT_GT(device_->processors(), 1u);
}

TEST_F(GpuDevice, MemoryIsZeroedAndCopiesArriveInOrder) {
  const auto stream = device_->make_stream().value();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4099}}) {
    const auto memory = device_->allocate(bytes).value();
    EXPECT_EQ(memory->size(), bytes);
    std::vector<std::byte> got(bytes, std::byte{7}), sent(bytes, std::byte{9});
    ASSERT_TRUE(stream->copy(got.data(), memory->data(), bytes).ok());
    ASSERT_TRUE(stream->wait().ok());
    EXPECT_EQ(got, std::vector<std::byte>(bytes));
    ASSERT_TRUE(stream->copy(memory->data(), sent.data(), bytes).ok());
    ASSERT_TRUE(stream->copy(got.data(), memory->data(), bytes).ok());
    ASSERT_TRUE(stream->wait().ok());
    EXPECT_EQ(got, sent);
  }
}

/// Whatever GPU the thread used last: another one, where there is one.
TEST_F(GpuDevice, MemoryIsWhereTheDeviceIs) {
  const auto number = static_cast<int>(test::gpu_number());
  const auto gpus = static_cast<int>(cuda::device_count().value());
  ASSERT_EQ(cudaSetDevice((number + 1) % gpus), cudaSuccess);
  const auto memory = device_->allocate(100).value();
  ASSERT_EQ(cudaSetDevice((number + 1) % gpus), cudaSuccess);
  const auto pinned = device_->allocate_pinned(100).value();
  cudaPointerAttributes at{};
  ASSERT_EQ(cudaPointerGetAttributes(&at, memory->data()), cudaSuccess);
  EXPECT_EQ(at.type, cudaMemoryTypeDevice);
  EXPECT_EQ(at.device, number);
  ASSERT_EQ(cudaPointerGetAttributes(&at, pinned->data()), cudaSuccess);
  EXPECT_EQ(at.type, cudaMemoryTypeHost);
  EXPECT_EQ(at.devicePointer, pinned->data());  // kernels write there
  ASSERT_EQ(cudaSetDevice((number + 1) % gpus), cudaSuccess);
  const auto stream = device_->make_stream().value();
  ASSERT_TRUE(stream->copy(memory->data(), pinned->data(), 100).ok());
  ASSERT_TRUE(stream->wait().ok());
}

TEST_F(GpuDevice, SomeStreamsGoFirst) {
  const auto priority_of = [](Stream& stream) {
    int priority = 0;
    EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(stream.native()), &priority),
              cudaSuccess);
    return priority;
  };
  int last = 0, first = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&last, &first), cudaSuccess);
  EXPECT_EQ(priority_of(*device_->make_stream().value()), 0);
  EXPECT_EQ(priority_of(*device_->make_stream(Priority::kHigh).value()), first);
}

/// What was freed is there for the next who asks, and counted as free.
TEST_F(GpuDevice, FreedMemoryIsKeptAndFree) {
  constexpr std::size_t kBytes = 64 << 20;
  (void)device_->allocate(kBytes).value();
  const std::uint64_t free = device_->room().value().free;
  const auto memory = device_->allocate(kBytes).value();
  EXPECT_LE(device_->room().value().free, free - kBytes);
}

TEST_F(GpuDevice, DoneTurnsTrueWithoutAWait) {
  constexpr std::size_t kBytes = 256 << 20;
  const auto stream = device_->make_stream().value(), other = device_->make_stream().value();
  const auto a = device_->allocate(kBytes).value(), b = device_->allocate(kBytes).value();
  auto event = cuda::Event::make(test::gpu_number());
  ASSERT_TRUE(event.ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(stream->copy(a->data(), b->data(), kBytes).ok());
  ASSERT_TRUE(event->record(*stream).ok());
  ASSERT_TRUE(event->hold(*other).ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    const auto done = stream->done();
    ASSERT_TRUE(done.ok());
    if (*done) break;
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // or the next launch would tell of it
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  EXPECT_TRUE(*event->done());
  ASSERT_TRUE(other->wait().ok());
}

TEST_F(GpuDevice, MemoryThatIsNotThereIsAnErrorWithTheNameOfTheCall) {
  const auto memory = device_->allocate(std::size_t{1} << 45);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(memory.error().message(), HasSubstr("cudaMallocFromPoolAsync"));
  EXPECT_TRUE(device_->allocate(1).ok());  // and it goes on
}

TEST_F(GpuDevice, PinnedMemoryIsBoundedAndComesBack) {
  HostMemory pool(*device_, 8192);
  std::byte* data = nullptr;
  {
    const Buffer first = pool.take(4096);
    data = first.data();
    EXPECT_EQ(pool.use().pinned, 4096u);
    const Buffer too_much = pool.take(8192);  // plain
    EXPECT_EQ(pool.use().refused, 8192u);
  }
  EXPECT_EQ(pool.take(4000).data(), data);
}

TEST_F(GpuDevice, AGpuThatIsNotThereIsNamed) {
  const auto device = make_device("cuda:1023");
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message(), HasSubstr("'cuda:1023'"));
}

}  // namespace
}  // namespace centroid
