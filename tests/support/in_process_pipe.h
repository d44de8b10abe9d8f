#pragma once

#include <memory>
#include <mutex>

#include "transport/byte_stream.h"
#include "transport/parking.h"

namespace centroid::transport {

/// Bounded bytes from one writer to one reader, which may live on different executors.
///
/// owns      a ring that grows with the bytes in flight, up to `kMaxBytes`; then the writer waits
/// thread    reader's calls on the reader's executor, writer's on the writer's
class Pipe {
 public:
  static constexpr std::size_t kFirstBytes = 16 << 10;
  static constexpr std::size_t kMaxBytes = 4 << 20;

  Moved try_read(MutableBytes into);
  Moved try_write(std::span<const Bytes> parts);
  /// Wait until a try may return something else than would_block; false if the calling task was
  /// cancelled.
  Task<bool> readable();
  Task<bool> writable();
  /// The reader's end closed: both sides' pending and later calls end.
  void end_reads() noexcept;
  /// The writer's end closed: the reader reads the rest, then eof.
  void end_writes() noexcept;

 private:
  enum class Side : std::uint8_t { kReader, kWriter };
  Task<bool> wait(Side side);
  bool is_blocked(Side side) const;
  void grow(std::size_t requested);

  std::mutex mutex_;
  std::unique_ptr<std::byte[]> ring_;
  std::size_t capacity_ = 0, head_ = 0, size_ = 0;
  bool reads_ended_ = false, writes_ended_ = false;
  Parking reader_, writer_;
};

}  // namespace centroid::transport
