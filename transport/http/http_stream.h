#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/async/task.h"
#include "transport/byte_stream.h"
#include "transport/stranger_budget.h"

namespace centroid::transport {

/// A byte stream with a receive buffer and a deadline. After the deadline the stream closes and
/// pending calls fail with timed_out.
///
/// thread  the stream's executor
class HttpStream {
 public:
  using ErrorCode = boost::system::error_code;

  explicit HttpStream(std::unique_ptr<ByteStream> stream);
  ~HttpStream();

  /// Deadline of all later calls. TimePoint::max(): none.
  void expires_at(TimePoint when);
  void expires_after(Duration time) { expires_at(centroid::now() + time); }
  /// Call before anything else: so a failure of TLS shows before a request is sent.
  Task<ErrorCode> shake_hands();
  /// Append the next bytes to `buffer`, at most `most`.
  Task<ErrorCode> read(std::size_t most);
  /// Write all of `parts`, at most three. They are consumed.
  Task<ErrorCode> write(std::span<Bytes> parts);
  /// The peer reads the sent bytes, then the end; this side may still read.
  void end();
  void close();
  const std::string& peer() const { return peer_; }

  std::string buffer;
  HeldBytes held;  ///< for the buffer and the request, when they are not small

 private:
  struct Watch;
  ErrorCode error_of(const Moved& moved) const;

  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace centroid::transport
