#include <exception>

#include "transport/session_impl.h"

namespace centroid::transport {
namespace {

Error protocol_error(ErrorCode code, std::string what, const std::string& from) {
  return Error(code, "protocol error of " + from + ": " + std::move(what));
}

}  // namespace

Task<Status> Session::Impl::on_frame(Session& session, FrameSink& sink, InFrame frame) {
  const FrameHeader& header = frame.header;
  unread_payload = header.payload_bytes;
  is_unread_credited = false;
  if (header.kind == kGoodbye) {
    close(decode_error(frame.head).with_context("goodbye from " + label()));
    co_return Status();
  }
  if (cause)
    co_return co_await drop_payload();  // we sent Goodbye and only wait for the peer to close
  if (header.kind == kCredit) co_return on_credit(frame);
  if (header.kind < kFirstMessageKind)
    co_return protocol_error(
        ErrorCode::kInvalidArgument,
        "a frame of kind " + std::to_string(header.kind) + " after the handshake", label());
  const std::uint32_t role = header.flags & (kFlagRequest | kFlagResponse);
  if (role == (kFlagRequest | kFlagResponse))
    co_return protocol_error(ErrorCode::kInvalidArgument, "a frame that is request and response",
                             label());
  if (role == kFlagResponse) co_return co_await on_response(std::move(frame));
  co_return co_await deliver(session, sink, std::move(frame));
}

Task<Status> Session::Impl::on_response(InFrame frame) {
  const std::uint64_t id = frame.header.id;
  if (!requests.contains(id)) {
    ++(abandoned.erase(id) != 0 ? counters.late_replies : counters.unknown_replies);
    co_return co_await drop_payload();
  }
  std::vector<std::byte> payload(frame.header.payload_bytes);
  if (unread_payload != 0) {
    unread_payload = 0;
    Status read = co_await connection->read_payload(payload);
    if (!read.ok()) co_return read;
  }
  // Looked up again: the request may have been cancelled while its payload arrived.
  const auto found = requests.find(id);
  if (found == requests.end()) {
    if (abandoned.erase(id) != 0) ++counters.late_replies;
    co_return Status();
  }
  PendingRequest& request = *found->second;
  requests.erase(found);
  if ((frame.header.flags & kFlagError) != 0) {
    request.end(decode_error(frame.head));
  } else {
    request.reply.head = std::move(frame.head);
    request.reply.payload = std::move(payload);
    request.end(Status());
  }
  co_return Status();
}

Task<Status> Session::Impl::deliver(Session& session, FrameSink& sink, InFrame frame) {
  if ((frame.header.flags & kFlagRequest) != 0) {
    if (unanswered.size() >= kMaxOutstandingRequests)
      co_return protocol_error(
          ErrorCode::kResourceExhausted,
          "more than " + std::to_string(kMaxOutstandingRequests) + " requests without an answer",
          label());
    if (frame.header.id <= last_request)
      co_return protocol_error(
          ErrorCode::kInvalidArgument,
          "request id " + std::to_string(frame.header.id) +
              (last_request == 0 ? "" : " after " + std::to_string(last_request)) +
              ": ids begin at 1, and each is higher than the last",
          label());
    last_request = frame.header.id;
    unanswered.insert(frame.header.id);
  } else if (unread_payload != 0) {
    Status taken = receive_credit.take(unread_payload);
    if (!taken.ok())
      co_return protocol_error(taken.error().code(), taken.error().message(), label());
    is_unread_credited = true;
    lets_credit_wait = false;
  }
  std::optional<Status> status;
  try {
    status.emplace(co_await sink.on_frame(session, std::move(frame)));
  } catch (const std::exception& thrown) {
    status.emplace(Error(ErrorCode::kInternal,
                         std::string("exception while taking a frame: ") + thrown.what()));
  }
  if (!status->ok()) co_return std::move(*status);
  co_return co_await drop_payload();
}

Status Session::Impl::on_credit(const InFrame& frame) {
  const auto bytes = decode_credit(frame.head);
  if (!bytes.ok()) return protocol_error(bytes.error().code(), bytes.error().message(), label());
  if (frame.header.payload_bytes != 0)
    return protocol_error(ErrorCode::kInvalidArgument, "a Credit frame with a payload", label());
  Status added = send_credit.add(*bytes);
  if (!added.ok()) return protocol_error(added.error().code(), added.error().message(), label());
  grant_waiting();
  return {};
}

Task<Status> Session::Impl::drop_payload() {
  if (unread_payload == 0) co_return Status();
  const std::uint64_t bytes = std::exchange(unread_payload, 0);
  const bool is_credited = is_unread_credited;
  Status skipped = co_await connection->skip_payload();
  if (skipped.ok() && is_credited) {
    receive_credit.release(bytes);
    if (receive_credit.is_grant_due()) grants.wake();
  }
  co_return skipped;
}

Task<void> Session::Impl::write_grants() {
  // Ends with the session only: `leave` wakes it.
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  while (!cause) {
    if (!receive_credit.is_grant_due()) {
      co_await grants.park();
      continue;
    }
    const std::vector<std::byte> head = encode_credit(receive_credit.take_grant());
    OutFrame frame;
    frame.kind = kCredit;
    frame.head = head;
    frame.may_wait = lets_credit_wait;
    ++counters.credit_frames_out;
    const Status written = co_await connection->write(frame);
    if (!written.ok()) co_return;  // the connection is closed: the read loop finds the cause
  }
}

Task<Status> Session::read_payload(MutableBytes into) {
  const auto impl = impl_;
  if (impl->unread_payload == 0 || into.size() != impl->unread_payload)
    co_return Error(ErrorCode::kInvalidArgument,
                    "read_payload into " + std::to_string(into.size()) + " bytes, the frame has " +
                        std::to_string(impl->unread_payload) + " left to read");
  impl->unread_payload = 0;
  co_return co_await impl->connection->read_payload(into);
}

Task<Status> Session::skip_payload() {
  const auto impl = impl_;
  co_return co_await impl->drop_payload();
}

void Session::release_credit(std::uint64_t bytes) {
  impl_->receive_credit.release(bytes);
  if (impl_->receive_credit.is_grant_due()) impl_->grants.wake();
}

}  // namespace centroid::transport
