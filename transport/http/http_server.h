#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/async/task.h"
#include "common/base/budget.h"
#include "transport/http/http.h"
#include "transport/stream_layer.h"
#include "transport/transport.h"

namespace centroid::transport {

/// Limits on clients. Read again for each connection and request.
struct HttpLimits {
  std::size_t header_limit_bytes = 8 * 1024;  ///< and 100 fields
  std::size_t body_limit_bytes = 64 * 1024;
  std::size_t max_connections = 1024;
  std::chrono::milliseconds idle_timeout{30'000};   ///< from a response to the next request
  std::chrono::milliseconds read_timeout{10'000};   ///< first byte to last byte of a request
  std::chrono::milliseconds write_timeout{10'000};  ///< one whole response, or a piece of a stream
};

/// Metrics of an HttpServer.
struct HttpMeters {
  metrics::Budget connections = {};
  metrics::Budget head_bytes = {};     ///< memory of requests that are not small
  metrics::Counter dropped_slow = {};  ///< a request or response took longer than its time
};

/// The owner's side of an HttpServer. All calls are on the server's executor.
class HttpService {
 public:
  virtual ~HttpService() = default;
  virtual Task<HttpResponse> answer(HttpRequest request) = 0;
  /// Decide on a request by its line and fields, before its body is read. An answer: the body is
  /// not read, and the connection ends.
  virtual std::optional<HttpResponse> refuse_body(const HttpRequest& /*head*/) {
    return std::nullopt;
  }
  /// The answer to bytes that are no valid request for this server (400, 413, 431, 505), and to one
  /// connection too many (503).
  virtual HttpResponse refuse(unsigned status, const std::string& detail,
                              const std::string& path) = 0;
  /// Whether `address` (HOST:PORT) may begin another handshake of TLS.
  virtual bool may_shake_hands(const std::string& /*address*/) { return true; }
};

/// HTTP/1.1 on one port: accepts, reads requests, writes the answers of its service.
///
/// thread  everything runs on `executor` (one thread or a strand)
/// owns    its sockets and every coroutine it started
/// bounds  every read and write has a deadline; sizes and connections are limited. One connection
///         too many replaces the oldest without any request so far, else the one that has sent its
///         request for longest, else the newest idle one. So silent and slow connections displace
///         each other, not those with occasional requests
class HttpServer {
 public:
  /// `service` and `limits` outlive it. `tls`: HTTPS; none: plain. `name`: of the field Server,
  /// which is sent with Date; "": neither.
  HttpServer(Executor executor, HttpService& service, const HttpLimits& limits,
             std::shared_ptr<StreamLayer> tls, std::string name, HttpMeters meters = {});
  ~HttpServer();  ///< before `start`, or after `join`

  /// Bind the port. Returns the actual address and port.
  ///
  /// fails   invalid_argument (host unknown, cannot listen), already_exists (port in use)
  Result<Endpoint> listen(const Endpoint& endpoint);
  /// Begin to accept, after `listen`. On its executor.
  void start();
  /// Accept nothing new, close idle connections, and let answers end within `grace`.
  Task<void> close(Duration grace);
  /// Close the connections that `close` has left.
  void drop();
  /// Wait until no connection is left, after `close`.
  Task<void> join();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::transport
