#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/async/task.h"
#include "transport/byte_stream.h"

namespace centroid::transport {

/// A byte stream with a buffer of what came and a deadline. When that passes, the stream closes
/// and what is pending fails with timed_out.
///
/// thread  the stream's executor
class HttpStream {
 public:
  using ErrorCode = boost::system::error_code;

  explicit HttpStream(std::unique_ptr<ByteStream> stream);
  ~HttpStream();

  /// Of all that is done from now on. TimePoint::max(): none.
  void expires_at(TimePoint when);
  void expires_after(Duration time) { expires_at(centroid::now() + time); }
  /// Before anything else: so a failure of TLS shows before a request is sent.
  Task<ErrorCode> shake_hands();
  /// Append what comes next to `buffer`, at most `most` bytes.
  Task<ErrorCode> read(std::size_t most);
  /// Write all of `parts`, of which there are at most three. They are used up.
  Task<ErrorCode> write(std::span<Bytes> parts);
  /// The peer reads what was sent, then the end; this side may go on to read.
  void end();
  void close();
  const std::string& peer() const { return peer_; }

  std::string buffer;

 private:
  struct Watch;
  ErrorCode error_of(const Moved& moved) const;

  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace centroid::transport
