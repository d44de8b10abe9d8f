#include "transport/http/http_exchange.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <limits>
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
constexpr std::size_t kFirstBytes = 512;  ///< an idle connection has room for so many
constexpr std::size_t kMaxFields = 100;   ///< most defaults of other servers are 100
/// Memory of a field in HttpFields besides its text.
constexpr std::size_t kFieldBytes = 128;
/// Without the budget: of bytes that are no request yet, and of a request.
constexpr std::size_t kFreeBytes = 4096, kFreeRequest = 8192;

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

HttpRequest to_request(const HttpStream& stream, const Parser::value_type& message) {
  HttpRequest request;
  request.address = stream.peer();
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.version = message.version();
  request.fields = fields_of(message);
  return request;
}

/// Nothing for a peer that just left.
void refuse(HttpIncoming& incoming, const SystemError& ec, const std::string& fault) {
  const auto with = [&incoming](unsigned status, const std::string& detail) {
    incoming.refused = status;
    incoming.detail = detail;
  };
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return;
  if (ec == http::error::header_limit)
    with(431, "there are more than " + std::to_string(kMaxFields) + " fields");
  else if (ec == http::error::buffer_overflow)
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

/// Parse the request line and fields in `bytes`, and refuse faulty ones.
SystemError parse_head(Parser& parser, std::string_view bytes, std::string& fault) {
  parser.header_limit(std::numeric_limits<std::uint32_t>::max());  // read_head has limits
  parser.eager(false);                                             // it stops after the fields
  SystemError ec;
  parser.put(asio::buffer(bytes), ec);
  if (ec == http::error::need_more) return ec;
  fault = head_fault(bytes);
  if (!ec && !fault.empty()) ec = http::error::bad_field;
  return ec;
}

/// As parse_head, whose parser does not wait for more.
SystemError check_head(std::string_view bytes, std::string& fault) {
  Parser parser;
  return parse_head(parser, bytes, fault);
}

/// "": there is no whole and valid request line.
std::string path_of(std::string_view bytes) {
  std::string_view rest = bytes, line;
  if (!take_line(rest, line)) return "";
  Parser parser;
  std::string fault;
  (void)parse_head(parser, bytes.substr(0, bytes.size() - rest.size()), fault);
  const std::string target(parser.get().target());
  return target.substr(0, target.find('?'));
}

/// Count the memory of a connection, with a buffer for `size` bytes and a request of so many,
/// unless both are small. False: there is no room.
bool hold(HttpStream& stream, std::size_t size, std::size_t request) {
  const std::size_t buffer = std::max(size, stream.buffer.capacity());
  const bool is_small = buffer <= kFreeBytes && request <= kFreeRequest;
  return stream.held.resize(is_small ? 0 : buffer + request).ok();
}

/// A request line and fields, at the front of bytes that grow.
struct Head {
  std::size_t bytes = 0, lines = 0;  ///< of whole lines
  bool is_whole = false;             ///< with the empty line

  void find_end(std::string_view from) {
    std::string_view rest = from.substr(bytes), line;
    while (!is_whole && take_line(rest, line)) {
      is_whole = line.empty();
      ++lines;
    }
    bytes = from.size() - rest.size();
  }
  std::size_t fields() const { return lines - std::min<std::size_t>(lines, is_whole ? 2 : 1); }
};

/// Wait until the request line and fields are in the buffer. No parser waits with them: it takes
/// much memory for each field. One that looks at them whenever they are twice as many bytes finds
/// what will never be a request.
Task<SystemError> read_head(HttpStream& stream, const HttpLimits& limits, Head& head,
                            std::string& fault) {
  const std::string& bytes = stream.buffer;
  const std::size_t most = limits.header_limit_bytes;
  for (std::size_t checked = 0;;) {
    head.find_end(bytes);
    SystemError ec = http::error::header_limit;
    if (head.fields() > kMaxFields) co_return ec;
    ec = http::error::buffer_overflow;
    if (head.bytes > most || (!head.is_whole && bytes.size() >= most)) co_return ec;
    if (head.is_whole) co_return SystemError();
    if (bytes.size() >= 2 * checked) {
      checked = bytes.size();
      ec = check_head(bytes, fault);
      if (ec != http::error::need_more) co_return ec;
    }
    const bool is_full = bytes.size() == bytes.capacity() || bytes.capacity() < kFirstBytes;
    const std::size_t room = is_full ? std::max(2 * bytes.size(), kFirstBytes) : bytes.capacity();
    if (!hold(stream, std::min(room, most), 0)) co_return asio::error::no_memory;
    ec = co_await stream.read(std::min(room, most) - bytes.size());
    if (ec) co_return ec;
  }
}

/// The body of a request whose fields have been read.
Task<SystemError> read_body(HttpStream& stream, const HttpLimits& limits, Parser& parser,
                            const HttpRequest& request) {
  SystemError ec;
  const std::string* const expect = request.field("expect");
  if (expect != nullptr && to_lower(*expect) == "100-continue" && request.version >= 11) {
    std::array<Bytes, 1> parts = {as_bytes("HTTP/1.1 100 Continue\r\n\r\n")};
    ec = co_await stream.write(parts);
  }
  parser.eager(true);
  const std::size_t most =
      std::max(limits.header_limit_bytes, stream.buffer.size()) + 2 * kReadBytes;
  while (!ec && !parser.is_done()) ec = co_await feed(stream, parser, kReadBytes, most);
  co_return ec;
}

/// Parse the head, and read the body. Bytes of the next request stay buffered.
Task<SystemError> read_rest(HttpStream& stream, const HttpLimits& limits, HttpService& service,
                            Head head, HttpIncoming& incoming, std::string& fault) {
  Parser parser;
  parser.body_limit(limits.body_limit_bytes);
  const std::string_view bytes = std::string_view(stream.buffer).substr(0, head.bytes);
  SystemError ec = parse_head(parser, bytes, fault);
  if (ec) co_return ec;
  HttpRequest request = to_request(stream, parser.get());
  parser.get().clear();  // with the fields of a trailer it gets others, which nobody reads
  incoming.path = request.target.substr(0, request.target.find('?'));
  stream.buffer.erase(0, head.bytes);
  stream.buffer.shrink_to_fit();
  const bool has_room = hold(stream, 0, head.bytes + head.fields() * kFieldBytes);
  if (!has_room) co_return asio::error::no_memory;
  if (!parser.is_done()) {
    incoming.answer = service.refuse_body(request);
    if (incoming.answer) co_return ec;
    ec = co_await read_body(stream, limits, parser, request);
    if (ec) co_return ec;
  }
  incoming.keep_alive = parser.keep_alive();
  request.body = std::move(parser.get().body());
  incoming.request = std::move(request);
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
    const SystemError ec = co_await stream.read(kFirstBytes);
    if (ec) co_return false;
  }
}

Task<HttpIncoming> read_request(HttpStream& stream, const HttpLimits& limits,
                                HttpService& service) {
  HttpIncoming incoming;
  Head head;
  std::string fault;
  stream.expires_after(limits.read_timeout);
  SystemError ec = co_await read_head(stream, limits, head, fault);
  if (!ec) ec = co_await read_rest(stream, limits, service, head, incoming, fault);
  stream.expires_at(TimePoint::max());  // the answer may take its time
  if (!ec) co_return incoming;
  incoming.is_slow = ec == asio::error::timed_out;
  refuse(incoming, ec, fault);
  if (incoming.path.empty()) incoming.path = path_of(stream.buffer);
  if (incoming.path.empty()) incoming.path = "/";
  co_return incoming;
}

void release_request(HttpStream& stream) {
  stream.buffer.shrink_to_fit();
  (void)hold(stream, 0, 0);  // less than before
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
    stream.buffer = std::string();
    release_request(stream);
    ec = co_await stream.read(kReadBytes);
  }
}

}  // namespace centroid::transport
