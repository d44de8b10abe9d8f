#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/fields.hpp>

#include "transport/http/http.h"
#include "transport/http/http_stream.h"

/// Boost.Beast as a parser of messages; only http_exchange.cc and http_client.cc include this.
namespace centroid::transport {

namespace asio = boost::asio;
namespace http = boost::beast::http;

inline bool is_http_error(const boost::system::error_code& ec) {
  return ec.category() == http::make_error_code(http::error::bad_method).category();
}

inline HttpFields fields_of(const http::fields& from) {
  HttpFields fields;
  fields.reserve(static_cast<std::size_t>(std::distance(from.begin(), from.end())));
  for (const auto& field : from)
    fields.emplace_back(to_lower(std::string(field.name_string())), std::string(field.value()));
  return fields;
}

/// The first bytes of the end of a chunked body. Beast takes them, and then asserts that at least
/// two more have come, and not one.
template <bool is_request>
bool is_cut_end(const http::basic_parser<is_request>& parser, std::string_view bytes) {
  constexpr std::string_view kEnd = "0\r\n\r\n";
  return parser.is_header_done() && parser.chunked() && bytes.size() < kEnd.size() &&
         bytes.starts_with("0\r\n");
}

/// Pass buffered bytes to the parser, or wait for `piece` bytes more. Bytes that it cannot parse
/// yet, such as half of a line, may be `most` bytes.
template <bool is_request>
Task<boost::system::error_code> feed(HttpStream& stream, http::basic_parser<is_request>& parser,
                                     std::size_t piece, std::size_t most) {
  boost::system::error_code ec = http::error::need_more;
  if (!stream.buffer.empty() && !is_cut_end(parser, stream.buffer))
    stream.buffer.erase(0, parser.put(asio::buffer(stream.buffer), ec));
  if (ec != http::error::need_more) co_return ec;
  ec = http::error::buffer_overflow;
  if (stream.buffer.size() >= most) co_return ec;
  ec = co_await stream.read(piece);
  if (ec != asio::error::eof) co_return ec;
  ec = {};
  if (parser.got_some())
    parser.put_eof(ec);
  else
    ec = http::error::end_of_stream;
  co_return ec;
}

}  // namespace centroid::transport
