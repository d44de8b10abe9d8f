#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include <boost/asio/error.hpp>
#include <boost/system/error_code.hpp>

#include "common/async/task.h"
#include "common/base/bytes.h"

namespace centroid::transport {

/// Bytes moved (at least one), or the reason why none were.
struct Moved {
  std::size_t bytes = 0;
  boost::system::error_code
      error;  ///< would_block, eof (the peer ended), operation_aborted, or the system's
  bool is_blocked() const { return error == boost::asio::error::would_block; }
};

/// The bytes under a FramedConnection: one ordered stream each way. All calls on `executor()`; one
/// reader and one writer at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Move the bytes that can be moved now, else would_block.
  virtual Moved try_read(MutableBytes into) = 0;
  virtual Moved try_write(std::span<const Bytes> parts) = 0;
  /// The same before `close`. A layer whose handshake has not begun says in its own way that the
  /// peer may come again, whose read then fails with device_or_resource_busy.
  virtual Moved try_write_last(std::span<const Bytes> parts) { return try_write(parts); }
  /// Wait until bytes moved. operation_aborted after `close` and when the calling task is
  /// cancelled.
  virtual Task<Moved> read_some(MutableBytes into) = 0;
  virtual Task<Moved> write_some(std::span<const Bytes> parts) = 0;
  /// Whether received bytes can be read in place: then `try_view` returns at least `least` of them
  /// or would_block, `wait_view` waits until it would, and `consume`d bytes are invalid.
  /// `end_frame` marks the end of a frame of the peer, so that the next one begins aligned.
  virtual bool has_view() const { return false; }
  virtual Moved try_view(std::size_t /*least*/, Bytes& /*view*/) { return {}; }
  virtual Task<Moved> wait_view(std::size_t /*least*/) { co_return Moved(); }
  virtual void consume(std::size_t /*bytes*/) {}
  virtual void end_frame() {}
  /// The peer reads the sent bytes, then the end; this side may still read. No effect on a stream
  /// without half-close.
  virtual void end() noexcept {}
  /// Ends pending calls (not inline); the peer reads the sent bytes, then the end.
  virtual void close() noexcept = 0;
  virtual std::string peer() const = 0;
  /// As in Connection.
  virtual std::optional<double> peer_certificate_end() const { return std::nullopt; }
  /// As in Connection.
  virtual void count_handshake(std::shared_ptr<double> /*seconds*/) {}
  virtual Executor executor() const = 0;
};

}  // namespace centroid::transport
