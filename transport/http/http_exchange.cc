#include "transport/http/http_exchange.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <utility>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "transport/http/http_parse.h"

namespace centroid::transport {

namespace {

using Parser = http::request_parser<http::string_body>;
using SystemError = boost::system::error_code;

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

HttpRequest to_request(const HttpStream& stream, Parser::value_type message) {
  HttpRequest request;
  request.address = stream.peer();
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.version = message.version();
  request.fields = fields_of(message);
  request.body = std::move(message.body());
  return request;
}

/// Nothing for a peer that just left.
void refuse(HttpIncoming& incoming, const SystemError& ec, const std::string& fault) {
  const auto with = [&incoming](unsigned status, const std::string& detail) {
    incoming.refused = status;
    incoming.detail = detail;
  };
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return;
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    with(431, "the request line and fields are larger than this server reads");
  else if (ec == asio::error::no_memory)
    with(431,
         "the request line and fields are large, and those of others take all memory for such");
  else if (ec == http::error::body_limit)
    with(413, "the body is larger than this server reads");
  else if (ec == http::error::bad_version)
    with(505, "expected HTTP/1.1 or HTTP/1.0");
  else if (!fault.empty())
    with(400, fault);
  else if (is_http_error(ec))
    with(400, "not an HTTP request: " + ec.message());
}

/// The status line and fields. `from` may replace a usual field.
std::string head_of(const HttpResponse& from, HttpFraming framing, const std::string& server) {
  std::string head = framing.version >= 11 ? "HTTP/1.1 " : "HTTP/1.0 ";
  head += std::to_string(from.status) + " ";
  head.append(http_reason(from.status)).append("\r\n");
  HttpFields fields;
  const auto set = [&fields](const std::string& name, std::string value) {
    std::erase_if(fields, [&](const auto& old) { return to_lower(old.first) == to_lower(name); });
    fields.emplace_back(name, std::move(value));
  };
  if (!server.empty()) {
    set("Server", server);
    set("Date", http_date());
  }
  set("Cache-Control", "no-store");
  set("X-Content-Type-Options", "nosniff");
  if (!from.content_type.empty()) set("Content-Type", from.content_type);
  for (const auto& [name, value] : from.fields) set(name, value);
  if (framing.version < 11 && framing.keep_alive) set("Connection", "keep-alive");
  if (framing.version >= 11 && !framing.keep_alive) set("Connection", "close");
  if (from.stream &&
      !from.stream->length()) {  // with HTTP/1.0 the end of the connection is its end
    if (framing.version >= 11) set("Transfer-Encoding", "chunked");
  } else if (from.status != 204 && from.status != 304) {
    const std::uint64_t size = from.text.empty() ? from.body.size() : from.text.size();
    set("Content-Length", std::to_string(from.stream ? *from.stream->length() : size));
  }
  for (const auto& [name, value] : fields)
    head.append(name).append(": ").append(value).append("\r\n");
  return head + "\r\n";
}

constexpr std::size_t kShownBytes = 64;  ///< of a name or value, in a message

enum Single { kLength, kEncoding, kHost, kAuthorization, kOrigin, kSingles };
constexpr std::array<std::string_view, kSingles> kNames = {"Content-Length", "Transfer-Encoding",
                                                           "Host", "Authorization", "Origin"};

std::string_view without_space(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string quoted(std::string_view text) {
  std::string out = "'";
  out.append(text.substr(0, kShownBytes)).append("'");
  return out;
}

std::string value_fault(std::size_t field, std::string_view value, bool is_http_10) {
  const std::string name = "field " + quoted(kNames[field]) + ": ";
  if (field == kEncoding && is_http_10) return name + "HTTP/1.0 does not define it";
  if (field == kEncoding && to_lower(value) != "chunked")
    return name + "expected 'chunked', got " + quoted(value);
  const bool is_number =
      !value.empty() && value.find_first_not_of("0123456789") == std::string_view::npos;
  if (field == kLength && !is_number) return name + "expected digits, got " + quoted(value);
  return "";
}

/// The next line without its end, taken from `text`; false: there is no whole one.
bool take_line(std::string_view& text, std::string_view& line) {
  const auto end = text.find("\r\n");
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return true;
}

/// A fault of the request line and fields in `head`: one that another reader, such as a proxy, may
/// understand differently, and so see the request end elsewhere. Names the field; "": none. Beast
/// accepts most of them.
///
/// head    as sent; bytes after the empty line, and an incomplete line, are ignored
/// source  RFC 9112, sections 3.2, 5.1, 5.2, 6.1 and 6.3
std::string head_fault(std::string_view head) {
  std::string_view request_line, line, name;
  if (!take_line(head, request_line)) return "";
  const bool is_http_10 = request_line.ends_with(" HTTP/1.0");
  std::array<bool, kSingles> has{};
  bool is_complete = false;
  while (!is_complete && take_line(head, line)) {
    is_complete = line.empty();
    if (is_complete) continue;
    if (line[0] == ' ' || line[0] == '\t')
      return "field " + quoted(name) + " continues in a line that begins with space or tab";
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return "the line " + quoted(line) + " has no colon";
    name = line.substr(0, colon);
    if (name.ends_with(' ') || name.ends_with('\t'))
      return "field " + quoted(without_space(name)) + ": there is space or tab before the colon";
    const std::string lower = to_lower(name);
    const auto is_it = [&lower](std::string_view known) { return to_lower(known) == lower; };
    const auto at = std::find_if(kNames.begin(), kNames.end(), is_it) - kNames.begin();
    const auto field = static_cast<std::size_t>(at);
    if (field == kSingles) continue;
    if (std::exchange(has[field], true)) return "field " + quoted(name) + " appears twice";
    std::string fault = value_fault(field, without_space(line.substr(colon + 1)), is_http_10);
    if (!fault.empty()) return fault;
  }
  if (has[kLength] && has[kEncoding])
    return "fields 'Content-Length' and 'Transfer-Encoding' stand together";
  if (is_complete && !has[kHost] && request_line.ends_with(" HTTP/1.1"))
    return "HTTP/1.1 needs the field 'Host'";
  return "";
}

/// Upper bound of the buffer.
std::size_t most_bytes(const HttpStream& stream, const HttpLimits& limits) {
  return std::max(limits.header_limit_bytes, stream.buffer.size()) + 2 * kReadBytes;
}

/// Read the request line and fields, and refuse faulty ones. Later bytes stay buffered.
Task<SystemError> read_head(HttpStream& stream, const HttpLimits& limits, Parser& parser,
                            std::string& fault) {
  std::string& bytes = stream.buffer;
  const std::size_t most = most_bytes(stream, limits);
  parser.eager(false);  // it stops after the fields
  for (std::size_t used = 0;;) {
    SystemError ec;
    if (used < bytes.size()) {
      used += parser.put(asio::buffer(bytes.data() + used, bytes.size() - used), ec);
      if (ec != http::error::need_more) {
        fault = head_fault(bytes);
        if (!ec && !fault.empty()) ec = http::error::bad_field;
        bytes.erase(0, used);
        co_return ec;
      }
    }
    ec = http::error::buffer_overflow;
    if (bytes.size() >= most) co_return ec;
    const bool has_room = bytes.size() < kReadBytes || stream.held.resize(bytes.size()).ok();
    if (!has_room) co_return asio::error::no_memory;
    ec = co_await stream.read(std::min(kReadBytes, most - bytes.size()));
    if (ec) co_return ec;
  }
}

/// The body of a request whose fields have been read.
Task<SystemError> read_body(HttpStream& stream, const HttpLimits& limits, Parser& parser) {
  SystemError ec;
  const auto expect = parser.get()[http::field::expect];
  if (to_lower({expect.data(), expect.size()}) == "100-continue" && parser.get().version() >= 11) {
    std::array<Bytes, 1> parts = {as_bytes("HTTP/1.1 100 Continue\r\n\r\n")};
    ec = co_await stream.write(parts);
  }
  parser.eager(true);
  const std::size_t most = most_bytes(stream, limits);
  while (!ec && !parser.is_done()) ec = co_await feed(stream, parser, kReadBytes, most);
  co_return ec;
}

/// Each piece has `timeout` to be sent; the time between them is unlimited.
Task<SystemError> write_pieces(HttpStream& stream, BodyStream& body, bool is_chunked,
                               Duration timeout) {
  for (bool is_last = false; !is_last;) {
    stream.expires_at(TimePoint::max());
    const auto piece = co_await body.next();
    if (!piece.ok()) co_return asio::error::operation_aborted;
    stream.expires_after(timeout);
    is_last = piece->empty();
    char size[24] = "";
    if (is_chunked) std::snprintf(size, sizeof size, "%zx\r\n", piece->size());
    const Bytes end = as_bytes(is_chunked ? "\r\n" : "");
    std::array<Bytes, 3> parts = {as_bytes(size), as_bytes(*piece), end};
    const SystemError ec = co_await stream.write(parts);
    if (ec) co_return ec;
  }
  co_return SystemError();
}

}  // namespace

Task<bool> wait_for_request(HttpStream& stream, const HttpLimits& limits) {
  stream.expires_after(limits.idle_timeout);
  for (;;) {
    // RFC 9112, section 2.2: empty lines before a request are skipped
    stream.buffer.erase(0, stream.buffer.find_first_not_of("\r\n"));
    if (!stream.buffer.empty()) co_return true;
    const SystemError ec = co_await stream.read(kReadBytes);
    if (ec) co_return false;
  }
}

Task<HttpIncoming> read_request(HttpStream& stream, const HttpLimits& limits,
                                HttpService& service) {
  HttpIncoming incoming;
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(limits.header_limit_bytes));
  parser.body_limit(limits.body_limit_bytes);
  stream.expires_after(limits.read_timeout);
  std::string fault;
  SystemError ec = co_await read_head(stream, limits, parser, fault);
  (void)stream.held.resize(0);
  if (!ec && !parser.is_done()) {
    incoming.answer = service.refuse_body(to_request(stream, parser.get()));
    if (!incoming.answer) ec = co_await read_body(stream, limits, parser);
  }
  stream.expires_at(TimePoint::max());  // the answer may take its time
  if (incoming.answer) co_return incoming;
  if (!ec) {
    incoming.keep_alive = parser.keep_alive();
    incoming.request = to_request(stream, parser.release());
    co_return incoming;
  }
  incoming.is_slow = ec == asio::error::timed_out;
  refuse(incoming, ec, fault);
  const std::string target(parser.get().target());  // empty: the request line was not read
  incoming.path = target.substr(0, target.find('?'));
  if (incoming.path.empty()) incoming.path = "/";
  co_return incoming;
}

Task<SystemError> write_response(HttpStream& stream, HttpResponse response, HttpFraming framing,
                                 std::string name, Duration timeout) {
  stream.expires_after(timeout);
  const std::string head = head_of(response, framing, name);
  const bool has_body = !framing.is_head && response.status != 204 && response.status != 304;
  const bool is_stream = has_body && response.stream;
  std::array<Bytes, 2> parts = {as_bytes(head), Bytes()};
  if (has_body && !is_stream)
    parts[1] = as_bytes(response.text.empty() ? response.body : response.text);
  SystemError ec = co_await stream.write(parts);
  if (ec || !is_stream) co_return ec;
  const bool is_chunked = !response.stream->length() && framing.version >= 11;
  ec = co_await write_pieces(stream, *response.stream, is_chunked, timeout);
  co_return ec;
}

Task<void> linger(HttpStream& stream) {
  stream.end();
  stream.expires_after(kLingerTime);
  SystemError ec;
  for (std::size_t got = 0; !ec && got < kLingerBytes; got += stream.buffer.size()) {
    stream.buffer.clear();
    ec = co_await stream.read(kReadBytes);
  }
}

}  // namespace centroid::transport
