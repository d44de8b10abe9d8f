#include "transport/http/request_head.h"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/read_size.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>

namespace centroid::transport {

namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::size_t kReadBytes = 4096;
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
  if (field == kEncoding && is_http_10) return name + "HTTP/1.0 does not know it";
  if (field == kEncoding && !beast::iequals(value, "chunked"))
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

}  // namespace

std::string head_fault(std::string_view head) {
  std::string_view request_line, line, name;
  if (!take_line(head, request_line)) return "";
  const bool is_http_10 = request_line.ends_with(" HTTP/1.0");
  std::array<bool, kSingles> has{};
  bool is_whole = false;
  while (!is_whole && take_line(head, line)) {
    is_whole = line.empty();
    if (is_whole) continue;
    if (line[0] == ' ' || line[0] == '\t')
      return "field " + quoted(name) + " goes on in a line that begins with space or tab";
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return "the line " + quoted(line) + " has no colon";
    name = line.substr(0, colon);
    if (name.ends_with(' ') || name.ends_with('\t'))
      return "field " + quoted(without_space(name)) + ": there is space or tab before the colon";
    const auto is_it = [name](std::string_view known) { return beast::iequals(known, name); };
    const auto at = std::find_if(kNames.begin(), kNames.end(), is_it) - kNames.begin();
    const auto field = static_cast<std::size_t>(at);
    if (field == kSingles) continue;
    if (std::exchange(has[field], true)) return "field " + quoted(name) + " stands twice";
    std::string fault = value_fault(field, without_space(line.substr(colon + 1)), is_http_10);
    if (!fault.empty()) return fault;
  }
  if (has[kLength] && has[kEncoding])
    return "fields 'Content-Length' and 'Transfer-Encoding' stand together";
  if (is_whole && !has[kHost] && request_line.ends_with(" HTTP/1.1"))
    return "HTTP/1.1 needs the field 'Host'";
  return "";
}

Task<HeadRead> read_head(MaybeTls<beast::tcp_stream>& stream, beast::flat_buffer& buffer,
                         http::basic_parser<true>& parser) {
  HeadRead read;
  parser.eager(false);  // it stops behind the fields
  for (std::size_t used = 0;;) {
    const std::string_view bytes(static_cast<const char*>(buffer.data().data()), buffer.size());
    if (used < bytes.size()) {
      const std::string_view rest = bytes.substr(used);
      used += parser.put(boost::asio::buffer(rest.data(), rest.size()), read.ec);
      if (read.ec != http::error::need_more) {
        read.fault = head_fault(bytes);
        if (!read.ec && !read.fault.empty()) read.ec = http::error::bad_field;
        buffer.consume(used);
        co_return read;
      }
    }
    const std::size_t room = beast::read_size(buffer, kReadBytes);
    read.ec = http::error::buffer_overflow;
    if (room == 0) co_return read;
    const auto space = buffer.prepare(room);
    const auto [ec, n] = co_await stream.async_read_some(space, kAwait);
    read.ec = ec;
    if (ec) co_return read;
    buffer.commit(n);
  }
}

}  // namespace centroid::transport
