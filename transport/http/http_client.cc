#include "transport/http/http_client.h"

#include <array>
#include <utility>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "transport/http/http_parse.h"
#include "transport/http/http_stream.h"
#include "transport/tcp_stream.h"
#include "transport/tls/tls_stream.h"

namespace centroid::transport {

namespace {

using ResponseParser = http::response_parser<http::string_body>;
using SystemError = boost::system::error_code;

constexpr std::string_view kPlain = "http://", kSecure = "https://";
constexpr std::size_t kPieceBytes = 64 * 1024;

Error error_of(const SystemError& why) {
  if (why == asio::error::timed_out)
    return Error(ErrorCode::kDeadlineExceeded, "no answer in time");
  if (const auto tls = tls_failure(why))
    return Error(tls->is_verdict ? ErrorCode::kFailedPrecondition : ErrorCode::kAborted,
                 tls->reason);
  return Error(is_http_error(why) ? ErrorCode::kDataLoss : ErrorCode::kUnavailable, why.message());
}

std::string head_of(const HttpRequest& request, const Endpoint& to) {
  std::string head = request.method + " " + request.target + " HTTP/1.1\r\n";
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  add("Host", to.to_string());
  for (const auto& [name, value] : request.fields) add(name, value);
  if (request.method != "GET") add("Content-Length", std::to_string(request.body.size()));
  return head + "\r\n";
}

/// Passes the body on as it arrives; the body of an error is stored.
Task<SystemError> read_pieces(HttpStream& stream, const HttpReading& reading,
                              ResponseParser& parser, HttpAnswer& answer) {
  while (!parser.is_done() && answer.body.size() <= reading.most_bytes) {
    stream.expires_after(reading.silence);
    const SystemError failed = co_await feed(stream, parser, kPieceBytes, 2 * kPieceBytes);
    if (failed) co_return failed;
    const std::string piece = std::exchange(parser.get().body(), std::string());
    if (!answer.is_success())
      answer.body += piece;
    else if (!piece.empty() && !reading.take(piece))
      break;
  }
  co_return SystemError();
}

Task<SystemError> exchange(HttpStream& stream, std::string head, const HttpRequest& request,
                           const HttpReading& reading, ResponseParser& parser, HttpAnswer& answer) {
  std::array<Bytes, 2> parts = {as_bytes(head), as_bytes(request.body)};
  stream.buffer.clear();
  SystemError failed = co_await stream.write(parts);
  parser.eager(false);  // it stops after the fields
  while (!failed && !parser.is_header_done())
    failed = co_await feed(stream, parser, kPieceBytes, 2 * kPieceBytes);
  if (failed) co_return failed;
  parser.eager(true);
  answer.status = parser.get().result_int();
  answer.fields = fields_of(parser.get());
  if (reading.take) {
    failed = co_await read_pieces(stream, reading, parser, answer);
    co_return failed;
  }
  while (!failed && !parser.is_done())
    failed = co_await feed(stream, parser, kPieceBytes, 2 * kPieceBytes);
  answer.body = std::move(parser.get().body());
  co_return failed;
}

}  // namespace

Result<HttpOrigin> HttpOrigin::parse(std::string_view text) {
  HttpOrigin origin;
  origin.is_secure = text.starts_with(kSecure);
  if (origin.is_secure)
    text.remove_prefix(kSecure.size());
  else if (text.starts_with(kPlain))
    text.remove_prefix(kPlain.size());
  CENTROID_ASSIGN(origin.endpoint, Endpoint::parse(text));
  return origin;
}

std::string HttpOrigin::to_string() const {
  return std::string(is_secure ? kSecure : kPlain) + endpoint.to_string();
}

HttpClient::HttpClient(Executor executor, HttpOrigin origin)
    : executor_(std::move(executor)), origin_(std::move(origin)) {}

HttpClient::~HttpClient() = default;

Task<Status> HttpClient::open(std::shared_ptr<StreamLayer> tls, Deadline deadline) {
  stream_.reset();
  TransportOptions options;
  options.stall_timeout = std::chrono::milliseconds(0);
  options.layer = std::move(tls);
  auto connected = co_await connect_stream(executor_, origin_.endpoint, options, deadline);
  if (!connected.ok() && connected.error().code() == ErrorCode::kDeadlineExceeded)
    co_return error_of(asio::error::timed_out);
  if (!connected.ok()) co_return connected.error();
  auto stream = std::make_unique<HttpStream>(std::move(connected).value());
  stream->expires_at(deadline);
  const SystemError failed = co_await stream->shake_hands();
  if (failed) co_return error_of(failed);
  stream->expires_at(TimePoint::max());
  stream_ = std::move(stream);
  co_return Status();
}

Task<Result<HttpAnswer>> HttpClient::ask(const HttpRequest& request, const HttpReading& reading,
                                         Deadline deadline) {
  ResponseParser parser;
  if (reading.take)
    parser.body_limit(boost::none);
  else
    parser.body_limit(reading.most_bytes);
  stream_->expires_at(deadline);
  HttpAnswer answer;
  const std::string head = head_of(request, origin_.endpoint);
  const SystemError failed = co_await exchange(*stream_, head, request, reading, parser, answer);
  if (failed || !parser.is_done() || !parser.keep_alive())
    stream_.reset();
  else
    stream_->expires_at(TimePoint::max());
  if (failed) co_return error_of(failed);
  co_return std::move(answer);
}

}  // namespace centroid::transport
