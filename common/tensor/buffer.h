#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/base/bytes.h"

namespace centroid {

/// Uninitialised memory on a 64-byte boundary with exactly one owner. Returns to its pool or other
/// lender.
class Buffer {
 public:
  Buffer() = default;
  /// From the heap. From 2 MiB on aligned to 2 MiB and advised to use huge pages: first touch then
  /// costs one fault per 2 MiB instead of 512. Throws std::bad_alloc if there is no such memory
  /// (check a length from a peer before).
  explicit Buffer(std::size_t bytes);
  /// Memory of `owner`, which is released with the buffer.
  Buffer(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner)
      : data_(data), size_(bytes), owner_(std::move(owner)) {}
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  MutableBytes bytes() const { return {data_, size_}; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class BufferPool;
  void release() noexcept;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<struct BufferPoolState> home_;
  std::shared_ptr<void> owner_;
};

/// A bounded set of equal buffers. Thread-safe; buffers may outlive the pool object.
class BufferPool {
 public:
  /// At most `max_buffers` of `buffer_bytes` each; memory is allocated on first use and reused.
  BufferPool(std::size_t buffer_bytes, std::size_t max_buffers);
  /// A buffer, or nothing if all are in use (the caller applies back-pressure).
  std::optional<Buffer> try_acquire();

  std::size_t buffer_bytes() const;
  std::size_t in_use() const;
  std::size_t high_water() const;
  std::size_t capacity() const;

 private:
  std::shared_ptr<struct BufferPoolState> state_;
};

/// Its first `n` numbers.
inline std::span<float> floats(const Buffer& buffer, std::uint64_t n) {
  return buffer.as<float>().first(static_cast<std::size_t>(n));
}

}  // namespace centroid
