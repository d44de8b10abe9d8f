#include "transport/session.h"

#include <exception>

#include <boost/asio/this_coro.hpp>

#include "transport/session_impl.h"

namespace centroid::transport {

Session::Impl::Impl(std::unique_ptr<Connection> c)
    : connection(std::move(c)), timer(connection->executor()) {
  peer.address = connection->peer();
}

std::string Session::Impl::label() const {
  return peer.name.empty() ? peer.address : peer.name + " (" + peer.address + ")";
}

bool Session::Impl::leave(Error why) {
  if (cause) return false;
  cause = std::move(why);
  for (const auto& [id, request] : requests) request->end(*cause);
  requests.clear();
  abandoned.clear();
  for (CreditWait* wait : credit_waits) wait->end(*cause);
  credit_waits.clear();
  grants.wake();
  return true;
}

void Session::Impl::close(Error why) {
  leave(std::move(why));
  if (is_connection_closed) return;
  is_connection_closed = true;
  timer.cancel();
  connection->close(*cause);
  drained.wake();
}

std::vector<std::byte> Session::Impl::encode_fitting(const Error& error) const {
  return encode_error(error, peer.limits.max_head_bytes);
}

Task<void> Session::Impl::write_goodbye() {
  linger_deadline = centroid::now() + kLinger;
  watch(linger_deadline);
  const std::vector<std::byte> head = encode_fitting(*cause);
  OutFrame frame;
  frame.kind = kGoodbye;
  frame.head = head;
  (void)co_await connection->write(frame);
}

Task<Result<std::unique_ptr<Session>>> Session::Impl::begin(std::unique_ptr<Connection> connection,
                                                            Greeting greeting, Deadline deadline,
                                                            Greeter greeter) {
  auto impl = std::make_shared<Impl>(std::move(connection));
  impl->greeting_deadline = deadline;
  impl->watch(deadline);
  impl->receive_credit = ReceiveCredit(greeting.credit_bytes);
  Result<Peer> peer = co_await greeter(*impl->connection, std::move(greeting));
  if (!peer.ok()) {
    impl->close(std::move(peer).error());
    co_return Error(*impl->cause);
  }
  if (impl->cause) co_return Error(*impl->cause);  // the deadline passed as the last frame went out
  impl->greeting_deadline = Deadline::max();
  impl->peer = std::move(peer).value();
  impl->send_credit = SendCredit(impl->peer.credit_bytes);
  co_return std::unique_ptr<Session>(new Session(std::move(impl)));
}

Task<Result<std::unique_ptr<Session>>> Session::open(std::unique_ptr<Connection> connection,
                                                     Greeting greeting, Deadline deadline) {
  return Impl::begin(std::move(connection), std::move(greeting), deadline, &send_hello);
}

Task<Result<std::unique_ptr<Session>>> Session::accept(std::unique_ptr<Connection> connection,
                                                       Greeting greeting, Deadline deadline) {
  const Deadline soon = centroid::now() + kGreetingTimeout;
  return Impl::begin(std::move(connection), std::move(greeting), std::min(deadline, soon),
                     &answer_hello);
}

Task<Result<std::unique_ptr<Session>>> connect_session(Transport& transport, Endpoint endpoint,
                                                       Greeting greeting, Deadline deadline) {
  CENTROID_CO_ASSIGN(auto connection, co_await transport.connect(std::move(endpoint), deadline));
  co_return co_await Session::open(std::move(connection), std::move(greeting), deadline);
}

Session::Session(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  impl_->close(Error(ErrorCode::kCancelled, "session with " + impl_->label() + " dropped"));
}

const Peer& Session::peer() const { return impl_->peer; }
Connection& Session::connection() { return *impl_->connection; }
void Session::close(Error cause) noexcept { impl_->close(std::move(cause)); }
bool Session::is_closed() const { return impl_->cause.has_value(); }
std::vector<Session::Wait> Session::waits() const { return impl_->waits(); }

std::uint64_t Session::credit_left() const { return impl_->receive_credit.left(); }
SessionCounters Session::counters() const { return impl_->counters; }

Task<Error> Session::run(FrameSink& sink) {
  const auto impl = impl_;
  // A cancelled read comes back as a value, so that the children are joined on every path.
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  if (impl->is_running) co_return Error(ErrorCode::kFailedPrecondition, "run was called twice");
  impl->is_running = true;
  TaskGroup children(impl->connection->executor());
  children.spawn(impl->write_grants());
  while (true) {
    Result<InFrame> frame = co_await impl->connection->read_header();
    if (!frame.ok()) {
      const std::string& name = impl->peer.name;  // the connection's errors have the address
      const Error why = name.empty() ? frame.error() : frame.error().with_context(name);
      // A frame over the limits is not read, so the peer gets time to read the Goodbye.
      if (why.code() == ErrorCode::kResourceExhausted && impl->leave(why)) {
        co_await impl->write_goodbye();
        if (!impl->is_connection_closed) co_await impl->drained.park();
      }
      impl->close(why);
      break;
    }
    const Status status = co_await impl->on_frame(*this, sink, std::move(frame).value());
    if (impl->is_connection_closed) break;
    if (status.ok()) continue;
    if (impl->leave(status.error())) co_await impl->write_goodbye();
    // Refused bytes must still be read: bytes that are left when a socket closes drop the text.
    (void)co_await impl->drop_payload();
  }
  co_await children.join();
  co_return Error(*impl->cause);
}

Task<void> Session::goodbye(Error why) {
  const auto impl = impl_;
  if (!impl->leave(std::move(why))) co_return;
  co_await impl->write_goodbye();
  if (impl->is_running && !impl->is_connection_closed) co_await impl->drained.park();
  impl->close(*impl->cause);
}

Status Session::Impl::check_out(std::uint16_t kind, Bytes head, Bytes payload) const {
  if (cause) return Error(*cause);
  if (kind < kFirstMessageKind)
    return Error(ErrorCode::kInvalidArgument,
                 "kind " + std::to_string(kind) + " belongs to the session layer");
  if (head.size() > peer.limits.max_head_bytes)
    return Error(ErrorCode::kInvalidArgument,
                 "head of " + std::to_string(head.size()) + " bytes, agreed with " + label() +
                     " are at most " + std::to_string(peer.limits.max_head_bytes));
  if (payload.size() > peer.limits.max_payload_bytes)
    return Error(ErrorCode::kInvalidArgument,
                 "payload of " + std::to_string(payload.size()) + " bytes, agreed with " + label() +
                     " are at most " + std::to_string(peer.limits.max_payload_bytes));
  return {};
}

Task<Result<Reply>> Session::request(std::uint16_t kind, Bytes head, Bytes payload,
                                     Deadline deadline) {
  const auto impl = impl_;
  CENTROID_CO_TRY(impl->check_out(kind, head, payload));
  if (impl->requests.size() + impl->abandoned.size() >= kMaxOutstandingRequests)
    co_return Error(ErrorCode::kResourceExhausted, impl->label() + " has " +
                                                       std::to_string(kMaxOutstandingRequests) +
                                                       " requests without an answer");
  const TimePoint now = centroid::now();
  if (deadline <= now)
    co_return Error(ErrorCode::kDeadlineExceeded, "request of kind " + std::to_string(kind) +
                                                      " to " + impl->label() +
                                                      " not sent: its deadline has passed");
  Impl::PendingRequest pending(*impl, impl->next_id++, kind);
  pending.since = now;
  pending.deadline = deadline;
  impl->watch(deadline);
  OutFrame frame;
  frame.kind = kind;
  frame.flags = kFlagRequest;
  frame.id = pending.id;
  frame.head = head;
  frame.payload = payload;
  Status written = co_await impl->connection->write(frame);
  if (!written.ok()) {
    impl->forget(pending.id);  // no answer will come
    if (!pending.result) co_return impl->cause_or(std::move(written).error());
  }
  if (!pending.result) co_await pending.waiter.park();
  if (!pending.result)
    co_return Error(ErrorCode::kCancelled,
                    "cancelled while waiting for a reply from " + impl->label());
  if (!pending.result->ok()) co_return std::move(*pending.result).error();
  co_return std::move(pending.reply);
}

void Session::accept_without_crc() {
  FrameLimits limits = impl_->connection->limits();
  limits.accepts_without_crc = true;
  impl_->connection->set_limits(limits);
}

namespace {

OutFrame message(std::uint16_t kind, Bytes head, Bytes payload,
                 std::optional<std::uint32_t> payload_crc) {
  OutFrame frame;
  frame.kind = kind;
  frame.head = head;
  frame.payload = payload;
  frame.payload_crc = payload_crc;
  return frame;
}

}  // namespace

Task<Status> Session::send(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline,
                           std::optional<std::uint32_t> payload_crc) {
  return send(message(kind, head, payload, payload_crc), deadline);
}

Task<Status> Session::send_soon(std::uint16_t kind, Bytes head, Bytes payload, Deadline deadline,
                                std::optional<std::uint32_t> payload_crc) {
  OutFrame frame = message(kind, head, payload, payload_crc);
  frame.may_wait = true;
  return send(frame, deadline);
}

Task<Status> Session::send(OutFrame frame, Deadline deadline) {
  const auto impl = impl_;
  CENTROID_CO_TRY(impl->check_out(frame.kind, frame.head, frame.payload));
  const std::size_t bytes = frame.payload.size();
  if (bytes > 0) CENTROID_CO_TRY(co_await impl->take_credit(bytes, deadline));
  if (impl->cause) co_return Error(*impl->cause);
  if (sends_unsummed_ && bytes > 0) {
    frame.flags = kFlagNoPayloadCrc;
    frame.payload_crc.reset();
  }
  Status written = co_await impl->connection->write(frame);
  if (!written.ok()) {
    impl->return_credit(bytes);  // cancelled before the first byte: the session stays open
    co_return impl->cause_or(std::move(written).error());
  }
  co_return Status();
}

void Session::let_credit_wait() { impl_->lets_credit_wait = true; }

Task<Result<bool>> Session::flush() {
  const auto impl = impl_;
  auto flushed = co_await impl->connection->flush();
  if (!flushed.ok()) co_return impl->cause_or(std::move(flushed).error());
  co_return flushed;
}

Task<Status> Session::Impl::answer(const FrameHeader& request, std::uint32_t flags, Bytes head,
                                   Bytes payload) {
  CENTROID_CO_TRY(check_out(request.kind, head, payload));
  if (unanswered.erase(request.id) == 0)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "request " + std::to_string(request.id) + " of " + label() +
                        " is not open: answered already, or no request");
  OutFrame frame;
  frame.kind = request.kind;
  frame.flags = kFlagResponse | flags;
  frame.id = request.id;
  frame.head = head;
  frame.payload = payload;
  Status written = co_await connection->write(frame);
  if (!written.ok()) {
    if (!cause) unanswered.insert(request.id);
    co_return cause_or(std::move(written).error());
  }
  co_return Status();
}

Task<Status> Session::respond(const FrameHeader& request, Bytes head, Bytes payload) {
  const auto impl = impl_;
  const FrameHeader asked = request;
  co_return co_await impl->answer(asked, 0, head, payload);
}

Task<Status> Session::respond_error(const FrameHeader& request, Error error) {
  const auto impl = impl_;
  const FrameHeader asked = request;
  const std::vector<std::byte> head = impl->encode_fitting(error);
  co_return co_await impl->answer(asked, kFlagError, head, Bytes());
}

Task<Status> Session::respond(const FrameHeader& request, Status status) {
  return status.ok() ? respond(request, Bytes()) : respond_error(request, status.error());
}

Task<Status> Session::respond(const FrameHeader& request, Result<Reply> reply) {
  if (!reply.ok()) co_return co_await respond_error(request, reply.error());
  co_return co_await respond(request, reply->head, reply->payload);
}

}  // namespace centroid::transport
