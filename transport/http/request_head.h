#pragma once

#include <string>
#include <string_view>

#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include "common/async/task.h"
#include "transport/tls/maybe_tls.h"

namespace centroid::transport {

/// What is wrong with the request line and fields in `head`: what another reader, such as a proxy,
/// may understand differently, and so see the request end elsewhere. Names the field; "": nothing.
///
/// head    as sent; what follows the empty line is not looked at, nor a line without its end
/// source  RFC 9112, sections 3.2, 5.1, 5.2, 6.1 and 6.3
std::string head_fault(std::string_view head);

struct HeadRead {
  boost::beast::error_code ec;
  std::string fault;  ///< of what was sent, by `head_fault`; with an `ec` always
};

/// Read the request line and fields, and refuse what has a fault. Every HTTP server of Centroid
/// begins a request with this, since Beast accepts most of it. What follows stays in `buffer`.
///
/// fails  what Beast fails with; bad_field where only `head_fault` finds something
Task<HeadRead> read_head(MaybeTls<boost::beast::tcp_stream>& stream,
                         boost::beast::flat_buffer& buffer,
                         boost::beast::http::basic_parser<true>& parser);

}  // namespace centroid::transport
