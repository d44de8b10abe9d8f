#include "transport/http/http_stream.h"

#include <algorithm>
#include <utility>

#include "common/async/timer.h"

namespace centroid::transport {

struct HttpStream::Watch {
  explicit Watch(ByteStream& watched) : stream(watched), timer(watched.executor()) {}
  ByteStream& stream;
  Timer timer;
  bool is_late = false;
};

HttpStream::HttpStream(std::unique_ptr<ByteStream> stream)
    : stream_(std::move(stream)),
      peer_(stream_->peer()),
      watch_(std::make_shared<Watch>(*stream_)) {}

HttpStream::~HttpStream() = default;

void HttpStream::expires_at(TimePoint when) {
  watch_->timer.expires_at(when);
  if (when == TimePoint::max()) return;
  // It may run after this is destroyed, or after the deadline has moved.
  watch_->timer.async_wait([weak = std::weak_ptr(watch_), when](const ErrorCode& error) {
    const auto watch = weak.lock();
    if (!watch || error || watch->timer.expiry() != when) return;
    watch->is_late = true;
    watch->stream.close();
  });
}

HttpStream::ErrorCode HttpStream::error_of(const Moved& moved) const {
  return moved.error && watch_->is_late ? boost::asio::error::timed_out : moved.error;
}

Task<HttpStream::ErrorCode> HttpStream::shake_hands() {
  const std::span<const Bytes> nothing;
  const Moved moved = co_await stream_->write_some(nothing);
  co_return error_of(moved);
}

Task<HttpStream::ErrorCode> HttpStream::read(std::size_t most) {
  const std::size_t size = buffer.size();
  buffer.resize(size + most);
  const MutableBytes space = std::as_writable_bytes(std::span(buffer)).subspan(size);
  const Moved moved = co_await stream_->read_some(space);
  buffer.resize(size + moved.bytes);
  co_return error_of(moved);
}

Task<HttpStream::ErrorCode> HttpStream::write(std::span<Bytes> parts) {
  for (;;) {
    while (!parts.empty() && parts.front().empty()) parts = parts.subspan(1);
    if (parts.empty()) co_return ErrorCode();
    const std::span<const Bytes> rest = parts;
    Moved moved = co_await stream_->write_some(rest);
    if (moved.error) co_return error_of(moved);
    for (Bytes& part : parts) {
      const std::size_t taken = std::min(part.size(), moved.bytes);
      part = part.subspan(taken);
      moved.bytes -= taken;
    }
  }
}

void HttpStream::end() { stream_->end(); }

void HttpStream::close() { stream_->close(); }

}  // namespace centroid::transport
