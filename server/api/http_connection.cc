// The only file that knows Boost.Beast.
#include "server/api/http_connection.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/http/span_body.hpp>

#include "server/api/problem.h"
#include "transport/http/request_head.h"
#include "transport/tls/maybe_tls.h"

namespace centroid::server {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = asio::ip::tcp;
using Parser = http::request_parser<http::string_body>;

constexpr std::chrono::seconds kLingerTime{1};
constexpr std::size_t kLingerBytes = 256 * 1024;
constexpr std::size_t kReadBytes = 4096;

/// Format of the Date field.
/// source  RFC 9110, section 5.6.7 (IMF-fixdate)
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text, size};
}

HttpRequest to_request(Parser::value_type message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.version = message.version();
  for (const auto& field : message)
    request.fields.emplace_back(to_lower(std::string(field.name_string())),
                                std::string(field.value()));
  request.body = std::move(message.body());
  return request;
}

/// What to answer to bytes that are no request, or none for us; nothing for a peer that just left.
std::optional<HttpResponse> parse_problem(const transport::HeadRead& read,
                                          std::string_view instance) {
  const beast::error_code ec = read.ec;
  const auto refuse = [instance](unsigned status, std::string_view detail) {
    return make_problem(status, ErrorCode::kInvalidArgument, detail, instance);
  };
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return std::nullopt;
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    return refuse(431, "the request line and fields are larger than this server reads");
  if (ec == http::error::body_limit)
    return refuse(413, "the body is larger than this server reads");
  if (ec == http::error::bad_version) return refuse(505, "expected HTTP/1.1 or HTTP/1.0");
  if (!read.fault.empty()) return refuse(400, read.fault);
  if (ec.category() == http::make_error_code(http::error::bad_method).category())
    return refuse(400, "not an HTTP request: " + ec.message());
  return std::nullopt;
}

template <class Body>
http::response<Body> make_head(const HttpResponse& from, HttpFraming framing) {
  http::response<Body> message;
  message.version(framing.version);
  message.result(from.status);
  message.reason(std::string(http_reason(from.status)));
  message.set(http::field::server, "centroid");
  message.set(http::field::date, http_date());
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  if (!from.content_type.empty()) message.set(http::field::content_type, from.content_type);
  for (const auto& [name, value] : from.fields) message.set(name, value);
  message.keep_alive(framing.keep_alive);
  if (from.stream && !from.stream->length()) {
    if (framing.version >= 11)
      message.chunked(true);
    else
      message.keep_alive(false);  // its end is the end of the connection
  } else if (from.status != 204 && from.status != 304) {
    const std::uint64_t size = from.text.empty() ? from.body.size() : from.text.size();
    message.content_length(from.stream ? *from.stream->length() : size);
  }
  return message;
}

}  // namespace

struct HttpConnection::Impl {
  Impl(Tcp::socket socket, const HttpLimits& limits_, transport::SslPointer tls)
      : limits(limits_), stream(std::move(socket), std::move(tls)), lower(stream.lower()) {
    bound_buffer();
  }

  void bound_buffer() {
    buffer.max_size(std::max(limits.header_bytes, buffer.size()) + 2 * kReadBytes);
  }

  /// source  RFC 9112, section 2.2: empty lines before a request are skipped
  bool has_bytes() {
    while (buffer.size() > 0) {
      const char first = *static_cast<const char*>(buffer.data().data());
      if (first != '\r' && first != '\n') return true;
      buffer.consume(1);
    }
    return false;
  }
  Task<transport::HeadRead> read_message(Parser& parser);
  Task<beast::error_code> write_stream(std::shared_ptr<BodyStream> body, bool is_chunked,
                                       std::chrono::milliseconds timeout);

  const HttpLimits& limits;
  transport::MaybeTls<beast::tcp_stream> stream;
  beast::tcp_stream& lower;  ///< has the deadlines
  beast::flat_buffer buffer;
  bool is_closed = false;
};

HttpConnection::HttpConnection(Tcp::socket socket, const HttpLimits& limits,
                               transport::SslPointer tls)
    : impl_(std::make_unique<Impl>(std::move(socket), limits, std::move(tls))) {}

HttpConnection::~HttpConnection() = default;

std::string HttpConnection::address() const {
  beast::error_code ec;
  const auto peer = impl_->lower.socket().remote_endpoint(ec);
  if (ec) return "unknown";
  const std::string host = peer.address().to_string();
  return (peer.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(peer.port());
}

Task<bool> HttpConnection::shake_hands() {
  if (!impl_->stream.is_secure()) co_return true;
  impl_->lower.expires_after(impl_->limits.read_timeout);
  const auto [ec] = co_await impl_->stream.async_handshake(kAwait);
  co_return !ec && !impl_->is_closed;
}

Task<bool> HttpConnection::wait_for_request() {
  impl_->bound_buffer();
  impl_->lower.expires_after(impl_->limits.idle_timeout);
  while (!impl_->has_bytes()) {
    const auto space = impl_->buffer.prepare(kReadBytes);
    const auto [ec, n] = co_await impl_->stream.async_read_some(space, kAwait);
    if (ec || impl_->is_closed) co_return false;
    impl_->buffer.commit(n);
  }
  co_return !impl_->is_closed;
}

Task<transport::HeadRead> HttpConnection::Impl::read_message(Parser& parser) {
  transport::HeadRead read = co_await transport::read_head(stream, buffer, parser);
  if (read.ec || parser.is_done()) co_return read;
  const bool is_asking = beast::iequals(parser.get()[http::field::expect], "100-continue");
  if (is_asking && parser.get().version() >= 11) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    const auto bytes = asio::buffer(kContinue.data(), kContinue.size());
    auto [write_ec, written] = co_await asio::async_write(stream, bytes, kAwait);
    read.ec = write_ec;
    if (write_ec) co_return read;
  }
  auto [body_ec, body_bytes] = co_await http::async_read(stream, buffer, parser, kAwait);
  read.ec = body_ec;
  co_return read;
}

Task<HttpConnection::Incoming> HttpConnection::read_request() {
  Incoming incoming;
  impl_->bound_buffer();  // limits may have changed while it waited
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(impl_->limits.header_bytes));
  parser.body_limit(impl_->limits.body_bytes);
  impl_->lower.expires_after(impl_->limits.read_timeout);
  const transport::HeadRead read = co_await impl_->read_message(parser);
  if (!read.ec) {
    incoming.keep_alive = parser.keep_alive();
    incoming.request = to_request(parser.release());
    incoming.request->address = address();
  } else if (!impl_->is_closed) {
    incoming.is_slow = read.ec == beast::error::timeout;
    const std::string target(parser.get().target());  // empty: the request line was not read
    const std::string path = target.substr(0, target.find('?'));
    incoming.problem = parse_problem(read, path.empty() ? "/" : path);
  }
  co_return incoming;
}

Task<HttpConnection::Outcome> HttpConnection::write_response(HttpResponse response,
                                                             HttpFraming framing,
                                                             std::chrono::milliseconds timeout) {
  impl_->lower.expires_after(timeout);
  beast::error_code result;
  if (framing.is_head || response.status == 204 || response.status == 304) {
    const auto message = make_head<http::empty_body>(response, framing);
    http::response_serializer<http::empty_body> serializer(message);
    const auto [ec, n] = co_await http::async_write_header(impl_->stream, serializer, kAwait);
    result = ec;
  } else if (response.stream) {
    const auto message = make_head<http::empty_body>(response, framing);
    http::response_serializer<http::empty_body> serializer(message);
    const auto [ec, n] = co_await http::async_write_header(impl_->stream, serializer, kAwait);
    result = ec;
    if (!ec) result = co_await impl_->write_stream(response.stream, message.chunked(), timeout);
  } else if (!response.text.empty()) {
    auto message = make_head<http::span_body<const char>>(response, framing);
    message.body() =
        http::span_body<const char>::value_type(response.text.data(), response.text.size());
    const auto [ec, n] = co_await http::async_write(impl_->stream, message, kAwait);
    result = ec;
  } else {
    auto message = make_head<http::string_body>(response, framing);
    message.body() = std::move(response.body);
    const auto [ec, n] = co_await http::async_write(impl_->stream, message, kAwait);
    result = ec;
  }
  if (!result) co_return Outcome::kDone;
  co_return result == beast::error::timeout ? Outcome::kSlow : Outcome::kFailed;
}

/// Each piece has `timeout` to be taken; between them there may be any time.
Task<beast::error_code> HttpConnection::Impl::write_stream(std::shared_ptr<BodyStream> body,
                                                           bool is_chunked,
                                                           std::chrono::milliseconds timeout) {
  for (;;) {
    lower.expires_never();
    auto piece = co_await body->next();
    if (!piece.ok() || is_closed) co_return asio::error::operation_aborted;
    lower.expires_after(timeout);
    if (piece->empty()) break;
    if (is_chunked) {
      const auto chunk = http::make_chunk(asio::buffer(*piece));
      const auto [ec, n] = co_await asio::async_write(stream, chunk, kAwait);
      if (ec) co_return ec;
    } else {
      const auto bytes = asio::buffer(*piece);
      const auto [ec, n] = co_await asio::async_write(stream, bytes, kAwait);
      if (ec) co_return ec;
    }
  }
  if (!is_chunked) co_return beast::error_code();
  const auto last = http::make_chunk_last();
  const auto [ec, n] = co_await asio::async_write(stream, last, kAwait);
  co_return ec;
}

Task<void> HttpConnection::linger() {
  beast::error_code ec;
  impl_->lower.socket().shutdown(Tcp::socket::shutdown_send, ec);
  impl_->lower.expires_after(kLingerTime);
  impl_->buffer.clear();
  for (std::size_t got = 0; !ec && !impl_->is_closed && got < kLingerBytes;) {
    const auto space = impl_->buffer.prepare(kReadBytes);
    const auto [read_ec, n] = co_await impl_->stream.async_read_some(space, kAwait);
    ec = read_ec;
    got += n;
  }
}

void HttpConnection::close() {
  impl_->is_closed = true;
  impl_->lower.close();
}

}  // namespace centroid::server
