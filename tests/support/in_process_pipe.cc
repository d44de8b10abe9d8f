#include "tests/support/in_process_pipe.h"

#include <algorithm>
#include <cstring>

#include <boost/asio/this_coro.hpp>

namespace centroid::transport {

namespace asio = boost::asio;

bool Pipe::is_blocked(Side side) const {
  if (reads_ended_ || writes_ended_) return false;
  return side == Side::kReader ? size_ == 0 : size_ >= kMaxBytes;
}

Moved Pipe::try_read(MutableBytes into) {
  Moved moved;
  std::unique_lock lock(mutex_);
  if (reads_ended_) {
    moved.error = asio::error::operation_aborted;
  } else if (size_ == 0) {
    moved.error = writes_ended_ ? asio::error::make_error_code(asio::error::eof)
                                : asio::error::make_error_code(asio::error::would_block);
  }
  if (moved.error) return moved;
  moved.bytes = std::min(into.size(), size_);
  const std::size_t first = std::min(moved.bytes, capacity_ - head_);
  std::memcpy(into.data(), ring_.get() + head_, first);
  std::memcpy(into.data() + first, ring_.get(), moved.bytes - first);
  size_ -= moved.bytes;
  // An empty ring begins at the front again: small frames stay in the same cache lines.
  head_ = size_ == 0 ? 0 : (head_ + moved.bytes) & (capacity_ - 1);
  // Wake the writer for half a ring, not for every few bytes.
  if (!writer_.is_taken() || size_ > kMaxBytes / 2) return moved;
  auto writer = writer_.take();
  lock.unlock();
  Parking::resume(std::move(writer), true);
  return moved;
}

Moved Pipe::try_write(std::span<const Bytes> parts) {
  Moved moved;
  std::unique_lock lock(mutex_);
  if (writes_ended_) {
    moved.error = asio::error::operation_aborted;
  } else if (reads_ended_) {
    moved.error = asio::error::broken_pipe;
  } else if (size_ >= kMaxBytes) {
    moved.error = asio::error::would_block;
  }
  if (moved.error) return moved;
  std::size_t requested = size_;
  for (const Bytes part : parts) requested += part.size();
  if (requested > capacity_) grow(requested);
  for (Bytes part : parts) {
    part = part.first(std::min(part.size(), capacity_ - size_));
    if (part.empty()) continue;
    const std::size_t at = (head_ + size_) & (capacity_ - 1);
    const std::size_t first = std::min(part.size(), capacity_ - at);
    std::memcpy(ring_.get() + at, part.data(), first);
    std::memcpy(ring_.get(), part.data() + first, part.size() - first);
    size_ += part.size();
    moved.bytes += part.size();
  }
  auto reader = reader_.take();
  lock.unlock();
  Parking::resume(std::move(reader), true);
  return moved;
}

void Pipe::grow(std::size_t requested) {
  std::size_t capacity = std::max(capacity_, kFirstBytes);
  while (capacity < requested && capacity < kMaxBytes) capacity *= 2;
  if (capacity == capacity_) return;
  auto ring = std::make_unique_for_overwrite<std::byte[]>(capacity);
  const std::size_t first = std::min(size_, capacity_ - head_);
  if (size_ != 0) {
    std::memcpy(ring.get(), ring_.get() + head_, first);
    std::memcpy(ring.get() + first, ring_.get(), size_ - first);
  }
  ring_ = std::move(ring);
  capacity_ = capacity;
  head_ = 0;
}

Task<bool> Pipe::readable() { return wait(Side::kReader); }
Task<bool> Pipe::writable() { return wait(Side::kWriter); }

Task<bool> Pipe::wait(Side side) {
  Parking& place = side == Side::kReader ? reader_ : writer_;
  auto park = [this, side, &place](auto handler) {
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) {
      slot.assign([this, &place](asio::cancellation_type) {
        const std::lock_guard lock(mutex_);
        place.resume(false);
      });
    }
    const std::lock_guard lock(mutex_);
    if (!is_blocked(side)) return Parking::resume(std::move(handler), true);
    place.put(std::move(handler));
  };
  co_return co_await asio::async_initiate<const Parking::Token, void(bool)>(park,
                                                                            asio::use_awaitable);
}

void Pipe::end_reads() noexcept {
  const std::lock_guard lock(mutex_);
  reads_ended_ = true;
  size_ = 0;
  reader_.resume(true);
  writer_.resume(true);
}

void Pipe::end_writes() noexcept {
  const std::lock_guard lock(mutex_);
  writes_ended_ = true;
  reader_.resume(true);
  writer_.resume(true);
}

}  // namespace centroid::transport
