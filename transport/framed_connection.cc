#include "transport/framed_connection.h"

#include <algorithm>
#include <cstring>

#include <boost/asio/this_coro.hpp>

#include "common/base/crc32c.h"
#include "transport/no_tls.h"

namespace centroid::transport {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kBufferBytes = 16 << 10;
constexpr std::size_t kShortBytes = 2 * kFrameHeaderBytes;  // a header and the head of a segment
// Bytes received at once, so that they are still in cache when they are summed
// (tests/bench/pingpong_bench.cc).
constexpr std::size_t kPieceBytes = 256 << 10;
// Bytes viewed in the stream's own memory at once; then the peer gets the space back.
constexpr std::size_t kViewBytes = 64 << 10;
constexpr std::size_t kViewAlignment = 64;

std::string seconds(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

}  // namespace

/// Marks the one reader during its call.
class FramedConnection::ReadGuard {
 public:
  explicit ReadGuard(FramedConnection& connection) : connection_(connection) {
    connection_.is_reading_ = true;
  }
  ~ReadGuard() {
    connection_.is_reading_ = false;
    connection_.reading_since_ = TimePoint::max();
  }
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;

 private:
  FramedConnection& connection_;
};

FramedConnection::FramedConnection(std::unique_ptr<ByteStream> stream,
                                   const TransportOptions& options)
    : stream_(std::move(stream)),
      limits_(options.limits),
      stall_timeout_(options.stall_timeout),
      peer_(stream_->peer()),
      last_received_(now()),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)),
      self_(std::make_shared<FramedConnection*>(this)) {}

FramedConnection::~FramedConnection() {
  close(Error(ErrorCode::kCancelled, "connection to " + peer_ + " was destroyed"));
}

void FramedConnection::close(Error cause) noexcept {
  if (cause_) return;
  cause_ = std::move(cause);
  stream_->close();
  if (watchdog_) watchdog_->cancel();
  for (Parking* writer : std::exchange(writers_, {})) writer->resume(true);
}

Error FramedConnection::fail(Error cause) {
  close(std::move(cause));
  return *cause_;
}

Error FramedConnection::cancelled(std::string_view doing) const {
  return {ErrorCode::kCancelled, std::string(doing) + " " + peer_ + " was cancelled"};
}

// ---- reading

Result<FramedConnection::Reading> FramedConnection::begin_read(Reading requested,
                                                               std::size_t size) {
  if (cause_) return *cause_;
  if (refused_) return *refused_;
  if (is_reading_)
    return Error(ErrorCode::kFailedPrecondition, "two readers on the connection to " + peer_);
  consume_view();
  if (requested == Reading::kHeader) {
    if (!has_payload_) return requested;
    return Error(ErrorCode::kFailedPrecondition,
                 "the last frame's payload from " + peer_ + " was neither read nor skipped");
  }
  if (!has_payload_) {
    if (size == 0) return Reading::kNothing;
    return Error(ErrorCode::kFailedPrecondition, "no payload waits on the connection to " + peer_);
  }
  return requested;
}

Task<Result<InFrame>> FramedConnection::read_header() {
  // Errors are values here: without this Asio throws out of the caller's next co_await after a
  // cancellation.
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const Reading reading, begin_read(Reading::kHeader, 0));
  (void)reading;
  const ReadGuard guard(*this);
  if (frame_bytes_ != 0) stream_->end_frame();
  frame_read_ = std::min(end_ - begin_, kFrameHeaderBytes);
  frame_bytes_ = kFrameHeaderBytes;
  while (end_ - begin_ < kFrameHeaderBytes) {
    if (begin_ != 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= std::exchange(begin_, 0);
    }
    // Bytes that can be read in place are not read ahead. After a long payload another one is
    // likely, and bytes read ahead of it would be copied twice.
    std::size_t most = kBufferBytes - end_;
    if (stream_->has_view()) {
      most = kFrameHeaderBytes - end_;
    } else if (header_.payload_bytes > kBufferBytes) {
      most = kShortBytes - end_;
    }
    const MutableBytes space(buffer_.get() + end_, most);
    CENTROID_CO_ASSIGN(const std::size_t got, co_await read_some(space));
    end_ += got;
    frame_read_ = std::min(end_, kFrameHeaderBytes);
  }
  const Bytes raw(buffer_.get() + begin_, kFrameHeaderBytes);
  auto header = decode_header(raw, limits_);
  if (!header.ok()) {
    Error why = std::move(header).error().with_context("from " + peer_);
    if (is_tls(raw)) close_with(OutFrame(), why);  // so the peer sees that this is no TLS
    if (why.code() != ErrorCode::kResourceExhausted) co_return fail(std::move(why));
    refused_ = std::move(why);  // out of step from here on, but the peer can be notified
    co_return Error(*refused_);
  }
  begin_ += kFrameHeaderBytes;
  InFrame frame;
  frame.header = *header;
  frame_bytes_ += frame.header.head_bytes + frame.header.payload_bytes;
  if (Status room = held_.resize(frame.header.head_bytes); !room.ok()) {
    refused_ = std::move(room).error().with_context("from " + peer_);
    co_return Error(*refused_);
  }
  if (frame.header.head_bytes != 0) {
    frame.head.resize(frame.header.head_bytes);
    MutableBytes rest(frame.head);
    std::size_t got = take_buffered(rest);
    while (!(rest = rest.subspan(got)).empty()) {
      CENTROID_CO_ASSIGN(got, co_await read_some(rest));
      frame_read_ += got;
    }
  }
  if (crc32c(frame.head) != frame.header.head_crc) {
    co_return fail(
        Error(ErrorCode::kDataLoss, "from " + peer_ + ": checksum of a frame head differs"));
  }
  header_ = frame.header;
  has_payload_ = header_.payload_bytes != 0;
  payload_left_ = header_.payload_bytes;
  payload_crc_ = 0;
  ++traffic_.frames_in;
  if (!has_payload_ && header_.payload_crc != 0) {
    co_return fail(
        Error(ErrorCode::kDataLoss, "from " + peer_ + ": checksum of an empty payload is not 0"));
  }
  co_return frame;
}

Task<Status> FramedConnection::read_payload(MutableBytes into) {
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const Reading reading, begin_read(Reading::kPayload, into.size()));
  if (reading == Reading::kNothing) co_return Status();
  if (into.size() != payload_left_) {
    co_return Error(ErrorCode::kInvalidArgument, "read_payload: " + std::to_string(into.size()) +
                                                     " bytes passed for a payload of " +
                                                     std::to_string(payload_left_));
  }
  co_return co_await fill(into);
}

Task<Result<Bytes>> FramedConnection::read_piece(MutableBytes scratch) {
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const Reading reading, begin_read(Reading::kPayload, 0));
  if (reading == Reading::kNothing) co_return Bytes();
  if (stream_->has_view()) co_return co_await view_piece();
  const MutableBytes into = scratch.first(std::min<std::uint64_t>(scratch.size(), payload_left_));
  CENTROID_CO_TRY(co_await fill(into));
  co_return Bytes(into);
}

Task<Result<Bytes>> FramedConnection::view_piece() {
  const ReadGuard guard(*this);
  const std::size_t least = std::min<std::uint64_t>(payload_left_, kViewAlignment);
  Bytes view;
  while (true) {
    if (streak_ > kStreak) {
      streak_ = 0;
      co_await asio::post(stream_->executor(), asio::use_awaitable);
    }
    if (cause_) co_return *cause_;
    Moved moved = stream_->try_view(least, view);
    if (!moved.error) break;
    if (moved.is_blocked()) {
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      moved.error = asio::error::operation_aborted;
      if (state.cancelled() == asio::cancellation_type::none) {
        reading_since_ = now();
        watch();
        moved = co_await stream_->wait_view(least);
        reading_since_ = TimePoint::max();
        streak_ = 0;
      }
    }
    if (moved.error) co_return read_error(moved.error);
  }
  viewed_ = std::min<std::uint64_t>({view.size(), payload_left_, kViewBytes});
  if (viewed_ != payload_left_) viewed_ -= viewed_ % kViewAlignment;
  view = view.first(viewed_);
  streak_ += 1 + viewed_ / kStreakBytes;
  last_received_ = now();
  traffic_.bytes_in += viewed_;
  frame_read_ += viewed_;
  sum(view);
  if (payload_left_ == 0) CENTROID_CO_TRY(end_payload());
  co_return view;
}

void FramedConnection::consume_view() {
  if (viewed_ != 0) stream_->consume(std::exchange(viewed_, 0));
}

/// Reads the next bytes of the payload; with its last ones it checks the checksum.
Task<Status> FramedConnection::fill(MutableBytes into) {
  const ReadGuard guard(*this);
  std::size_t got = take_buffered(into);
  sum(into.first(got));
  while (!(into = into.subspan(got)).empty()) {
    const MutableBytes piece = into.first(std::min(into.size(), kPieceBytes));
    CENTROID_CO_ASSIGN(got, co_await read_some(piece));
    frame_read_ += got;
    sum(into.first(got));
  }
  co_return payload_left_ == 0 ? end_payload() : Status();
}

Task<Status> FramedConnection::skip_payload() {
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const Reading reading, begin_read(Reading::kPayload, 0));
  if (reading == Reading::kNothing) co_return Status();
  const ReadGuard guard(*this);
  while (payload_left_ != 0) {
    if (begin_ == end_) {
      const std::uint64_t most = stream_->has_view() ? payload_left_ : kBufferBytes;
      const MutableBytes space(buffer_.get(), std::min<std::uint64_t>(most, kBufferBytes));
      begin_ = end_ = 0;
      CENTROID_CO_ASSIGN(end_, co_await read_some(space));
    }
    const auto n = std::min<std::uint64_t>(payload_left_, end_ - begin_);
    sum({buffer_.get() + begin_, n});
    begin_ += n;
    frame_read_ += n;
  }
  co_return end_payload();
}

void FramedConnection::sum(Bytes piece) {
  payload_left_ -= piece.size();
  if ((header_.flags & kFlagNoPayloadCrc) == 0) payload_crc_ = crc32c(piece, payload_crc_);
}

std::size_t FramedConnection::take_buffered(MutableBytes into) {
  const std::size_t n = std::min(into.size(), end_ - begin_);
  if (n != 0) std::memcpy(into.data(), buffer_.get() + begin_, n);
  begin_ += n;
  frame_read_ += n;
  return n;
}

Status FramedConnection::end_payload() {
  has_payload_ = false;
  if (payload_crc_ == header_.payload_crc) return {};
  return fail(Error(ErrorCode::kDataLoss, "from " + peer_ + ": checksum of a payload of " +
                                              std::to_string(header_.payload_bytes) +
                                              " bytes differs"));
}

Task<Result<std::size_t>> FramedConnection::read_some(MutableBytes into) {
  if (streak_ > kStreak) {
    streak_ = 0;
    co_await asio::post(stream_->executor(), asio::use_awaitable);
  }
  if (cause_) co_return *cause_;
  Moved moved = stream_->try_read(into);
  if (moved.is_blocked()) {
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() == asio::cancellation_type::none) {
      if (frame_read_ != 0) {
        reading_since_ = now();
        watch();
      }
      moved = co_await stream_->read_some(into);
      reading_since_ = TimePoint::max();
      streak_ = 0;
    } else {
      moved.error = asio::error::operation_aborted;
    }
  }
  if (moved.error) co_return read_error(moved.error);
  streak_ += 1 + moved.bytes / kStreakBytes;
  last_received_ = now();
  traffic_.bytes_in += moved.bytes;
  co_return moved.bytes;
}

Error FramedConnection::read_error(const boost::system::error_code& error) {
  if (cause_) return *cause_;
  const bool is_begun = frame_read_ != 0;
  if (error == asio::error::operation_aborted) {
    Error stopped = cancelled("reading from");
    return is_begun ? fail(std::move(stopped)) : stopped;
  }
  std::string text = peer_;
  if (error == asio::error::eof) {
    text += " closed the connection";
  } else {
    text += ": " + error.message();
  }
  if (is_begun) {
    text += " in the middle of a frame (got " + std::to_string(frame_read_) + " of " +
            std::to_string(frame_bytes_) + " bytes)";
  }
  if (is_tls({buffer_.get() + begin_, end_ - begin_})) text += kNoTls;
  return fail(Error(code_of(error), std::move(text)));
}

ErrorCode FramedConnection::code_of(const boost::system::error_code& error) {
  const bool is_busy = error == boost::system::errc::device_or_resource_busy;
  return is_busy ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable;
}

// ---- the watchdog

void FramedConnection::watch() {
  if (is_watching_) return;
  is_watching_ = true;
  if (!watchdog_) watchdog_.emplace(stream_->executor());
  watchdog_->expires_at(std::min(reading_since_, writing_since_) + stall_timeout_);
  watchdog_->async_wait([self = std::weak_ptr(self_)](const boost::system::error_code& error) {
    const auto alive = self.lock();
    if (!error && alive) (*alive)->on_watch();
  });
}

void FramedConnection::on_watch() {
  is_watching_ = false;
  if (cause_) return;
  const TimePoint since = std::min(reading_since_, writing_since_);
  if (since == TimePoint::max()) return;
  if (now() - since < stall_timeout_) return watch();
  const bool is_read = since == reading_since_;
  close(Error(ErrorCode::kUnavailable,
              peer_ + (is_read ? " sent nothing for " : " took nothing for ") +
                  seconds(stall_timeout_) + " in the middle of a frame" +
                  (is_read ? " (got " + std::to_string(frame_read_) + " of " +
                                 std::to_string(frame_bytes_) + " bytes)"
                           : "")));
}

}  // namespace centroid::transport
