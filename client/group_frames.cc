#include "client/group_frames.h"

#include <memory>
#include <span>

#include <boost/asio/error.hpp>

#include "common/base/clock.h"
#include "transport/bound.h"
#include "transport/session.h"

namespace centroid::client {

using transport::Bound;
using transport::Connection;
using transport::InFrame;

namespace {
constexpr std::chrono::milliseconds kAskAgain{50};
constexpr int kMostCloses = 20;            // which take a second
constexpr std::chrono::seconds kFirst{5};  ///< for the first frame of a connection

Task<void> answer_caller(std::shared_ptr<Connection> connection, StrangerPlace place,
                         transport::Strangers* strangers, Answer answer) {
  Status turn = co_await place->turn();
  if (!turn.ok()) {
    (void)strangers->log_refused(connection->peer(), turn.error());
    co_return connection->close(std::move(turn).error());
  }
  const auto first = co_await read_text(*connection, centroid::now() + kFirst);
  if (first.ok())
    co_await answer(connection, *place, *first);
  else
    (void)strangers->log_refused(connection->peer(), first.error());
}

}  // namespace

transport::TransportOptions group_transport_options(std::shared_ptr<transport::StreamLayer> layer) {
  transport::TransportOptions options;
  options.limits.max_head_bytes = transport::kMaxHeadBytes;
  options.layer = std::move(layer);
  return options;
}

void answer_callers(TaskGroup& tasks, transport::Listener& listener,
                    transport::Strangers& strangers, Answer answer) {
  static constexpr bool kIsOver = false;  // `tasks` are cancelled
  auto serve = [&tasks, &strangers, answer = std::move(answer)](
                   std::unique_ptr<Connection> connection, StrangerPlace place) {
    transport::FrameLimits limits;
    limits.max_head_bytes = 16 << 10;
    connection->set_limits(limits);
    tasks.spawn(answer_caller(std::move(connection), std::move(place), &strangers, answer));
  };
  tasks.spawn(transport::accept_all(listener, strangers, kIsOver, std::move(serve)));
}

Task<Status> send_text(Connection& connection, GroupFrame kind, std::string text,
                       Deadline deadline) {
  const Bound bound(connection, deadline);
  transport::OutFrame frame;
  frame.kind = static_cast<std::uint16_t>(kind);
  frame.head = std::as_bytes(std::span(text));
  co_return co_await connection.write(frame);
}

Task<Status> answer_text(Connection& connection, GroupFrame kind, std::string text) {
  return send_text(connection, kind, std::move(text), centroid::now() + kAnswer);
}

Task<Status> answer_error(Connection& connection, Error why) {
  const Bound bound(connection, centroid::now() + kAnswer);
  const std::vector<std::byte> head = transport::encode_error(why);
  transport::OutFrame frame;
  frame.kind = static_cast<std::uint16_t>(GroupFrame::kRefused);
  frame.flags = transport::kFlagError;
  frame.head = head;
  co_return co_await connection.write(frame);
}

Task<Result<InFrame>> read_text(Connection& connection, Deadline deadline) {
  const Bound bound(connection, deadline);
  auto frame = co_await connection.read_header();
  if (frame.ok() && frame->header.payload_bytes != 0)
    co_return Error(ErrorCode::kDataLoss, connection.peer() + " sent a payload");
  const bool is_refusal = frame.ok() && (frame->header.kind == transport::kGoodbye ||
                                         (frame->header.flags & transport::kFlagError) != 0);
  if (is_refusal) co_return transport::decode_error(frame->head);  // as Strangers displaces
  co_return frame;
}

Task<Result<InFrame>> ask_process(transport::Transport* transport, transport::Endpoint place,
                                  GroupFrame kind, std::string text, Deadline connected,
                                  Deadline answered) {
  std::optional<Error> closed;  // without a word: a reset may have taken that it is displaced
  int closes = 0;
  for (int tries = 0; centroid::now() < connected; ++tries) {
    const bool waits = tries > 1;
    if (waits && !co_await sleep_until(centroid::now() + kAskAgain)) break;
    const auto connection = co_await transport->connect(place, connected);
    if (!connection.ok()) co_return closed.value_or(connection.error());
    (void)co_await send_text(**connection, kind, text, connected);
    auto answer = co_await read_text(**connection, answered);
    if (answer.ok()) co_return answer;
    const Error& why = answer.error();
    const bool is_displaced = why.code() == ErrorCode::kResourceExhausted;
    if (is_gone(why)) closed = why;
    const bool is_over = ++closes == kMostCloses || centroid::now() >= connected;
    if (is_refused(why) || (!is_displaced && (!closed || is_over))) co_return answer;
  }
  co_return Error(ErrorCode::kDeadlineExceeded,
                  place.to_string() + " accepts connections and does not answer");
}

std::vector<std::string> split(std::string_view text, char end, std::size_t most) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t at = parts.size() + 1 < most ? text.find(end) : std::string_view::npos;
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool is_refused(const Error& error) { return error.message().find(": TLS") != std::string::npos; }

bool is_gone(const Error& error) {
  if (error.code() != ErrorCode::kUnavailable || is_refused(error)) return false;
  const std::string& text = error.message();
  if (text.find("closed the connection") != std::string::npos) return true;
  for (const auto code : {boost::asio::error::connection_refused,
                          boost::asio::error::connection_reset, boost::asio::error::broken_pipe}) {
    const boost::system::error_code named(code);
    if (text.find(named.message()) != std::string::npos) return true;
  }
  return false;
}

bool is_literal(const std::string& host) {
  return host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

std::string listening_host(const transport::Endpoint& place) {
  if (place.is_loopback()) return place.host;
  return place.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
}

}  // namespace centroid::client
