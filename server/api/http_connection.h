#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>

#include <boost/asio/ip/tcp.hpp>

#include "common/async/task.h"
#include "server/api/http.h"
#include "transport/tls/tls_files.h"

namespace centroid::server {

/// What one connection may cost. Looked at anew for each request.
struct HttpLimits {
  std::size_t header_bytes = 8 * 1024;
  std::size_t body_bytes = 64 * 1024;
  std::chrono::milliseconds idle_timeout{30'000};
  std::chrono::milliseconds read_timeout{10'000};
};

/// How a response is framed.
struct HttpFraming {
  unsigned version = 11;
  bool is_head = false;  ///< fields only
  bool keep_alive = false;
};

/// One accepted connection: requests in, responses out, one after the other. The only user of
/// Boost.Beast.
///
/// thread  its socket's executor
/// ends    after any failure only `close` is useful; `close` ends pending calls
class HttpConnection {
 public:
  enum class Outcome { kDone, kSlow, kFailed };
  struct Incoming {
    std::optional<HttpRequest> request;
    std::optional<HttpResponse>
        problem;  ///< what to answer to bytes that are no request; then close
    bool keep_alive = false;
    bool is_slow = false;
  };

  /// `limits` outlives this, and may change on its executor. `tls`: HTTPS; nullptr: plain.
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpLimits& limits,
                 transport::SslPointer tls = nullptr);
  ~HttpConnection();

  /// Before anything else, with HTTPS. False: the peer speaks no TLS, or not in time.
  Task<bool> shake_hands();
  /// Wait for the first byte of a request. False: the peer left, stayed idle too long, or `close`
  /// was called.
  Task<bool> wait_for_request();
  /// Read one whole request; bytes of the next one stay buffered. Neither request nor problem: the
  /// peer is gone.
  Task<Incoming> read_request();
  Task<Outcome> write_response(HttpResponse response, HttpFraming framing,
                               std::chrono::milliseconds timeout);
  /// Half-close and drop what still comes for a short while, so that unread bytes do not reset the
  /// connection before the peer has read the answer.
  /// source  RFC 9112, section 9.6
  Task<void> linger();
  void close();
  std::string address() const;  ///< of the peer, HOST:PORT

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::server
