#pragma once

#include <memory>
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
  /// Ends what is pending (not inline); the peer reads what was sent, then the end.
  virtual void close() noexcept = 0;
  virtual std::string peer() const = 0;
  virtual Executor executor() const = 0;
};

}  // namespace centroid::transport
