#include <algorithm>

#include <boost/asio/this_coro.hpp>

#include "common/base/crc32c.h"
#include "transport/framed_connection.h"

namespace centroid::transport {

namespace asio = boost::asio;

namespace {

bool is_gone(const boost::system::error_code& error) {
  return error == asio::error::eof || error == asio::error::broken_pipe ||
         error == asio::error::connection_reset;
}

}  // namespace

Result<FrameHeader> FramedConnection::header_for(const OutFrame& frame) const {
  if (cause_) return *cause_;
  const auto max_head = std::min(limits_.max_head_bytes, kMaxHeadBytes);
  if (frame.head.size() > max_head) {
    return Error(ErrorCode::kResourceExhausted,
                 "frame head of " + std::to_string(frame.head.size()) + " bytes for " + peer_ +
                     " is over the limit of " + std::to_string(max_head));
  }
  if (frame.payload.size() > limits_.max_payload_bytes) {
    return Error(ErrorCode::kResourceExhausted,
                 "frame payload of " + std::to_string(frame.payload.size()) + " bytes for " +
                     peer_ + " is over the limit of " + std::to_string(limits_.max_payload_bytes));
  }
  FrameHeader header;
  header.kind = frame.kind;
  header.flags = frame.flags;
  header.id = frame.id;
  header.head_bytes = static_cast<std::uint32_t>(frame.head.size());
  header.payload_bytes = frame.payload.size();
  header.head_crc = crc32c(frame.head);
  if ((frame.flags & kFlagNoPayloadCrc) == 0)
    header.payload_crc = frame.payload_crc ? *frame.payload_crc : crc32c(frame.payload);
  return header;
}

Task<Status> FramedConnection::write(const OutFrame& frame) {
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const FrameHeader header, header_for(frame));
  const auto raw = encode_header(header);
  const std::array<Bytes, 3> parts{Bytes(raw), frame.head, frame.payload};
  const std::size_t size = raw.size() + frame.head.size() + frame.payload.size();
  // Streams that are read in place have frames that begin aligned: one in each write.
  const bool may_wait = frame.may_wait && writers_.empty() && !stream_->has_view();
  if (may_wait && waiting_.size() + size <= kMostWaiting) {
    for (const Bytes part : parts) waiting_.insert(waiting_.end(), part.begin(), part.end());
    ++traffic_.frames_out;
    co_return Status();
  }
  Status sent = co_await send_in_turn(parts);
  if (sent.ok()) ++traffic_.frames_out;
  co_return sent;
}

Task<Result<bool>> FramedConnection::flush() {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (cause_) co_return *cause_;
  if (waiting_.empty()) co_return false;
  const std::array<Bytes, 3> nothing;
  CENTROID_CO_TRY(co_await send_in_turn(nothing));
  co_return true;
}

void FramedConnection::close_with(const OutFrame& last, Error cause) noexcept {
  const auto header = header_for(last);
  if (header.ok() && !is_writing_ && !cause_) {
    const auto raw = encode_header(*header);
    const Parts parts{Bytes(waiting_), Bytes(raw), last.head, last.payload};
    const Moved moved = stream_->try_write_last(parts);  // a part of it is as good as none
    traffic_.bytes_out += moved.bytes;
  }
  close(std::move(cause));
}

Task<Status> FramedConnection::write_damaged(const OutFrame& frame, Damage damage) {
  co_await asio::this_coro::throw_if_cancelled(false);
  CENTROID_CO_ASSIGN(const FrameHeader header, header_for(frame));
  const auto raw = encode_header(header);
  std::vector<std::byte> bytes(raw.begin(), raw.end());
  bytes.insert(bytes.end(), frame.head.begin(), frame.head.end());
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  if (damage.flip_byte) bytes.at(*damage.flip_byte) ^= std::byte{1};
  if (damage.truncate_to) bytes.resize(std::min<std::size_t>(bytes.size(), *damage.truncate_to));
  const std::array<Bytes, 3> parts{Bytes(bytes), Bytes(), Bytes()};
  Status sent = co_await send_in_turn(parts);
  if (damage.truncate_to && sent.ok()) {
    co_return fail(
        Error(ErrorCode::kUnavailable, peer_ + ": connection cut in the middle of a frame"));
  }
  co_return sent;
}

/// With the frames that wait for it. Where nothing of them left they go on waiting.
Task<Status> FramedConnection::send_in_turn(std::array<Bytes, 3> frame) {
  if (is_writing_) CENTROID_CO_TRY(co_await await_turn());
  is_writing_ = true;
  leaving_.swap(waiting_);
  const Parts parts{Bytes(leaving_), frame[0], frame[1], frame[2]};
  Status sent = co_await send(parts);
  if (!sent.ok() && !cause_) waiting_.insert(waiting_.begin(), leaving_.begin(), leaving_.end());
  leaving_.clear();
  pass_turn();
  co_return sent;
}

Task<Status> FramedConnection::await_turn() {
  Parking turn;
  auto park = [this, &turn](auto handler) {
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) {
      slot.assign([this, &turn](asio::cancellation_type) {
        if (std::erase(writers_, &turn) != 0) turn.resume(false);
      });
    }
    turn.put(std::move(handler));
    writers_.push_back(&turn);
  };
  const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) co_return cancelled("writing to");
  const bool is_my_turn =
      co_await asio::async_initiate<const Parking::Token, void(bool)>(park, asio::use_awaitable);
  if (cause_) co_return *cause_;
  if (!is_my_turn) co_return cancelled("writing to");
  co_return Status();
}

void FramedConnection::pass_turn() {
  if (writers_.empty()) {
    is_writing_ = false;
    return;
  }
  Parking* const next = writers_.front();
  writers_.pop_front();
  next->resume(true);  // is_writing_ stays set: no other writer gets in between
}

Task<Status> FramedConnection::send(Parts parts) {
  std::size_t size = 0;
  for (const Bytes part : parts) size += part.size();
  std::size_t sent = 0;
  while (sent < size) {
    if (streak_ > kStreak) {
      streak_ = 0;
      co_await asio::post(stream_->executor(), asio::use_awaitable);
    }
    if (cause_) co_return *cause_;
    Moved moved = stream_->try_write(parts);
    if (moved.is_blocked()) {
      const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
      if (state.cancelled() == asio::cancellation_type::none) {
        writing_since_ = centroid::now();
        watch();
        moved = co_await stream_->write_some(parts);
        writing_since_ = TimePoint::max();
        streak_ = 0;
      } else {
        moved.error = asio::error::operation_aborted;
      }
    }
    if (moved.error) co_return write_error(moved.error, sent, size);
    streak_ += 1 + moved.bytes / kStreakBytes;
    sent += moved.bytes;
    traffic_.bytes_out += moved.bytes;
    for (Bytes& part : parts) {
      const std::size_t n = std::min(part.size(), moved.bytes);
      part = part.subspan(n);
      moved.bytes -= n;
    }
  }
  co_return Status();
}

Error FramedConnection::write_error(const boost::system::error_code& error, std::size_t sent,
                                    std::size_t size) {
  if (cause_) return *cause_;
  if (error == asio::error::operation_aborted) {
    Error stopped = cancelled("writing to");
    return sent != 0 ? fail(std::move(stopped)) : stopped;
  }
  std::string text = peer_ + (is_gone(error) ? " closed the connection" : ": " + error.message());
  if (sent != 0) {
    text += " in the middle of a frame (took " + std::to_string(sent) + " of " +
            std::to_string(size) + " bytes)";
  }
  return fail(Error(code_of(error), std::move(text)));
}

}  // namespace centroid::transport
