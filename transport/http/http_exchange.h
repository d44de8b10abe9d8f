#pragma once

#include <optional>
#include <string>

#include "transport/http/http_server.h"
#include "transport/http/http_stream.h"

/// A server's side of one exchange.
namespace centroid::transport {

/// Neither request nor refusal: the peer has left, or is too slow.
struct HttpIncoming {
  std::optional<HttpRequest> request;
  unsigned refused = 0;                ///< status for bytes that are no valid request; then close
  std::string detail, path;            ///< why, and of which request
  std::optional<HttpResponse> answer;  ///< of a request whose body was not read; then close
  bool keep_alive = false;
  bool is_slow = false;
};

/// How a response is framed.
struct HttpFraming {
  unsigned version = 11;
  bool is_head = false;  ///< fields only
  bool keep_alive = false;
};

/// Wait for the first byte of a request. False: the peer left, or stayed idle too long.
Task<bool> wait_for_request(HttpStream& stream, const HttpLimits& limits);
/// Read one complete request; bytes of the next one stay buffered. `service` decides on each body
/// before it is read.
Task<HttpIncoming> read_request(HttpStream& stream, const HttpLimits& limits, HttpService& service);
/// The request has been answered: free what only it needed.
void release_request(HttpStream& stream);
/// `name`: as in HttpServer.
Task<HttpStream::ErrorCode> write_response(HttpStream& stream, HttpResponse response,
                                           HttpFraming framing, std::string name, Duration timeout);
/// Half-close and drop incoming bytes for a short while, so that unread bytes do not reset the
/// connection before the peer has read the answer.
/// source  RFC 9112, section 9.6
Task<void> linger(HttpStream& stream);

}  // namespace centroid::transport
