#include "common/tensor/buffer.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace centroid {
namespace {

constexpr std::size_t kMaxSize = std::numeric_limits<std::size_t>::max();

bool is_aligned(const Buffer& buffer, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(buffer.data()) % to == 0;
}

TEST(Buffer, IsAlignedAndWritableToItsEnd) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{1} << 20,
        (std::size_t{2} << 20) + 3, std::size_t{5} << 20}) {
    const Buffer buffer(bytes);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(is_aligned(buffer, bytes >= (2u << 20) ? 2u << 20 : 64));
    std::memset(buffer.data(), 1, bytes);
    EXPECT_EQ(buffer.as<float>().size(), bytes / 4);
  }
}

TEST(Buffer, MoveTransfersOwnership) {
  Buffer a(128);
  std::byte* const data = a.data();
  Buffer b(std::move(a));
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): moved-from is empty by contract
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(b.data(), data);
  Buffer c(64);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 128u);
}

TEST(Buffer, HugeLengthsThrowInsteadOfOverflowing) {
  for (const std::size_t bytes :
       {kMaxSize, kMaxSize - 1, kMaxSize - 63, kMaxSize / 2, kMaxSize / 2 + 1})
    EXPECT_THROW(Buffer{bytes}, std::bad_alloc) << bytes;
  BufferPool pool(kMaxSize, 2);
  EXPECT_THROW((void)pool.try_acquire(), std::bad_alloc);
  EXPECT_EQ(pool.in_use(), 0u);
}

TEST(BufferPool, GivesAtMostItsCapacityAndReuses) {
  BufferPool pool(1000, 2);
  EXPECT_EQ(pool.capacity(), 2u);
  EXPECT_EQ(pool.buffer_bytes(), 1000u);
  auto a = pool.try_acquire();
  auto b = pool.try_acquire();
  ASSERT_TRUE(a && b);
  EXPECT_NE(a->data(), b->data());
  EXPECT_EQ(a->size(), 1000u);
  EXPECT_FALSE(pool.try_acquire());
  EXPECT_EQ(pool.in_use(), 2u);
  std::byte* const data = a->data();
  a.reset();
  EXPECT_EQ(pool.in_use(), 1u);
  a = pool.try_acquire();
  ASSERT_TRUE(a);
  EXPECT_EQ(a->data(), data);
  EXPECT_EQ(pool.high_water(), 2u);
  EXPECT_FALSE(BufferPool(8, 0).try_acquire());
}

TEST(BufferPool, BuffersOutliveThePool) {
  std::optional<Buffer> kept;
  {
    BufferPool pool(4096, kMaxSize);
    auto returned = pool.try_acquire();
    kept = pool.try_acquire();
  }
  ASSERT_TRUE(kept);
  std::memset(kept->data(), 7, kept->size());
  kept.reset();  // memory checkers see a leak or a double free here
}

TEST(BufferPool, MovedBufferGoesHomeOnce) {
  BufferPool pool(64, 3);
  Buffer a = std::move(*pool.try_acquire());
  EXPECT_EQ(pool.in_use(), 1u);
  a = Buffer(64);
  EXPECT_EQ(pool.in_use(), 0u);
  a = std::move(*pool.try_acquire());
  a = std::move(*pool.try_acquire());
  EXPECT_EQ(pool.in_use(), 1u);
}

TEST(BufferPool, ThreadsNeverShareABufferNorExceedTheBound) {
  constexpr std::size_t kThreads = 4;
  constexpr int kTurns = 20'000;
  BufferPool pool(64, 3);
  std::atomic<int> acquired{0};
  std::atomic<int> refused{0};
  std::atomic<bool> is_shared{false};
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTurns; ++i) {
          auto buffer = pool.try_acquire();
          if (!buffer) {
            ++refused;
            continue;
          }
          ++acquired;
          std::memset(buffer->data(), static_cast<int>(t), buffer->size());
          for (const std::byte b : buffer->bytes())
            if (b != static_cast<std::byte>(t)) is_shared = true;
        }
      });
  }
  EXPECT_FALSE(is_shared);
  EXPECT_EQ(acquired + refused, static_cast<int>(kThreads) * kTurns);
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_LE(pool.high_water(), 3u);
}

}  // namespace
}  // namespace centroid
