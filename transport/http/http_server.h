#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/async/task.h"
#include "common/base/metrics.h"
#include "transport/http/http.h"
#include "transport/stream_layer.h"
#include "transport/transport.h"

namespace centroid::transport {

/// What clients may cost. Looked at anew for each connection and request.
struct HttpLimits {
  std::size_t header_limit_bytes = 8 * 1024;
  std::size_t body_limit_bytes = 64 * 1024;
  std::size_t max_connections = 1024;
  std::chrono::milliseconds idle_timeout{30'000};   ///< from a response to the next request
  std::chrono::milliseconds read_timeout{10'000};   ///< first byte to last byte of a request
  std::chrono::milliseconds write_timeout{10'000};  ///< one whole response, or a piece of a stream
};

/// Where an HttpServer counts.
struct HttpMeters {
  metrics::Gauge connections = {};
  metrics::Counter dropped_slow = {};   ///< a request or response took longer than its time
  metrics::Counter dropped_limit = {};  ///< made room for, or refused as, one connection too many
};

/// What an HttpServer asks of its owner. All calls come on the server's executor.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual Task<HttpResponse> answer(HttpRequest request) = 0;
  /// The answer to bytes that are no request, or none for this server (400, 413, 431, 505), and to
  /// one connection too many (503).
  virtual HttpResponse refuse(unsigned status, const std::string& detail,
                              const std::string& path) = 0;
  /// Whether `address` (HOST:PORT) may begin another handshake of TLS.
  virtual bool may_shake_hands(const std::string& /*address*/) { return true; }
};

/// HTTP/1.1 on one port: accepts, reads requests, writes what its service answers.
///
/// thread  everything runs on `executor` (one thread or a strand)
/// owns    its sockets and every coroutine it started
/// bounds  every read and write has a deadline; sizes and connections are limited. One connection
///         too many takes the place of the newest that has never asked anything, else of the one
///         that has sent its request for longest, else of the newest that is idle. So silent and
///         slow connections push out each other, not those that ask now and then
class HttpServer {
 public:
  /// `service` and `limits` outlive it. `tls`: HTTPS; none: plain. `name`: of the field Server,
  /// beside which there is Date; "": neither.
  HttpServer(Executor executor, HttpService& service, const HttpLimits& limits,
             std::shared_ptr<StreamLayer> tls, std::string name, HttpMeters meters = {});
  ~HttpServer();  ///< before `start`, or after `join`

  /// Take the port. The real address and port come back.
  ///
  /// fails   invalid_argument (host unknown, cannot listen), already_exists (port in use)
  Result<Endpoint> listen(const Endpoint& endpoint);
  /// Begin to accept, after `listen`. On its executor.
  void start();
  /// Take nothing new, close idle connections, and let answers end within `grace`.
  Task<void> close(Duration grace);
  /// Close all that `close` has left.
  void drop();
  /// Wait until no connection is left, after `close`.
  Task<void> join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::transport
