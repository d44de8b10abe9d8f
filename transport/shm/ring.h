#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/bytes.h"
#include "common/base/result.h"

namespace centroid::transport::shm {

/// One direction's counters in the shared memory; each on a cache line of its own.
struct Control {
  alignas(64) std::atomic<std::uint64_t> head;           ///< bytes written, by the writer
  alignas(64) std::atomic<std::uint64_t> tail;           ///< bytes consumed, by the reader
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;  ///< the reader needs a wake-up
  /// The writer needs a wake-up when this many bytes are free; 0: it is awake.
  alignas(64) std::atomic<std::uint64_t> writer_awaits;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A file descriptor that is closed with its owner.
class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  File(File&& other) noexcept : fd_(other.release()) {}
  File& operator=(File&& other) noexcept;
  ~File();
  int get() const { return fd_; }
  int release();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// The memory of one connection: two rings of the same capacity, each mapped twice in a row, so
/// that the content of a ring is contiguous wherever it begins.
class Memory {
 public:
  /// A power of two, at least a page.
  static constexpr std::uint64_t kLeastCapacity = 4096, kMostCapacity = 64u << 20;

  /// Anonymous memory that cannot shrink; `file` is for the peer.
  static Result<std::unique_ptr<Memory>> make(std::uint64_t capacity, File& file);
  /// The same in the peer's process.
  /// fails  invalid_argument: not such a memory
  static Result<std::unique_ptr<Memory>> open(const File& file, std::uint64_t capacity);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::uint64_t capacity() const { return capacity_; }
  Control& control(int direction) const { return *controls_[direction]; }
  std::byte* data(int direction) const { return data_[direction]; }

 private:
  explicit Memory(std::uint64_t capacity) : capacity_(capacity) {}
  Status map(int fd);

  const std::uint64_t capacity_;
  Control* controls_[2] = {};
  std::byte* data_[2] = {};
};

/// An impossible value of a peer's counter: the peer is broken, and its values are not used.
inline constexpr std::uint64_t kBroken = ~std::uint64_t{0};

/// Frames begin at multiples of this.
inline constexpr std::uint64_t kAlignment = 64;
inline std::uint64_t aligned(std::uint64_t at) {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

/// The writing end.
class RingWriter {
 public:
  void attach(const Memory& memory, int direction);
  /// Bytes that fit now, or kBroken.
  std::uint64_t free() const;
  /// Copy the bytes that fit. True if the reader must be woken; it may already read the beginning
  /// while the end is still copied. If everything fits the frame is over, and the next begins
  /// aligned.
  bool write(std::span<const Bytes> parts, std::size_t& written);
  /// Request a wake-up when this many bytes are free.
  void await_free(std::uint64_t bytes) { control_->writer_awaits.store(bytes); }
  void stop_awaiting() { control_->writer_awaits.store(0, std::memory_order_relaxed); }
  std::uint64_t most() const { return capacity_ - kAlignment; }

 private:
  bool publish();

  Control* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t capacity_ = 0, head_ = 0;
};

/// The reading end.
class RingReader {
 public:
  void attach(const Memory& memory, int direction);
  /// Received bytes, or kBroken.
  std::uint64_t available() const;
  /// The next bytes, in place.
  Bytes view(std::uint64_t bytes) const { return {data_ + tail_ % capacity_, bytes}; }
  /// True if the writer must be woken.
  bool consume(std::uint64_t bytes);
  /// The rest of the frame was padding.
  bool align() { return consume(aligned(tail_) - tail_); }
  void sleep() { control_->reader_sleeps.store(1); }
  void stop_sleeping() { control_->reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  Control* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t capacity_ = 0, tail_ = 0;
};

}  // namespace centroid::transport::shm
