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

/// Bytes moved (at least one), or why none were.
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
  /// Move what can be moved now, else would_block.
  virtual Moved try_read(MutableBytes into) = 0;
  virtual Moved try_write(std::span<const Bytes> parts) = 0;
  /// Wait until something moved. operation_aborted after `close` and when the calling task is
  /// cancelled.
  virtual Task<Moved> read_some(MutableBytes into) = 0;
  virtual Task<Moved> write_some(std::span<const Bytes> parts) = 0;
  /// Whether what has come lies in memory that can be read in place: then `try_view` gives at least
  /// `least` bytes of it or would_block, `wait_view` waits until it would, and what was `consume`d
  /// must not be looked at any more. `end_frame` says that a frame of the peer's is over, so that
  /// the next one begins aligned.
  virtual bool has_view() const { return false; }
  virtual Moved try_view(std::size_t /*least*/, Bytes& /*view*/) { return {}; }
  virtual Task<Moved> wait_view(std::size_t /*least*/) { co_return Moved(); }
  virtual void consume(std::size_t /*bytes*/) {}
  virtual void end_frame() {}
  /// The peer reads what was sent, then the end; this side may still read. Where a stream has no
  /// such half, nothing happens.
  virtual void end() noexcept {}
  /// Ends what is pending (not inline); the peer reads what was sent, then the end.
  virtual void close() noexcept = 0;
  virtual std::string peer() const = 0;
  /// As of Connection.
  virtual std::optional<double> peer_certificate_end() const { return std::nullopt; }
  virtual Executor executor() const = 0;
};

}  // namespace centroid::transport
