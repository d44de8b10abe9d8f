#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/async/task.h"
#include "common/base/result.h"
#include "transport/http/http.h"
#include "transport/stream_layer.h"
#include "transport/transport.h"

namespace centroid::transport {

class HttpStream;

/// Address of an HTTP server.
struct HttpOrigin {
  Endpoint endpoint;
  bool is_secure = false;
  /// "http://HOST:PORT", "https://HOST:PORT" or, for http, HOST:PORT; IPv6 in brackets.
  static Result<HttpOrigin> parse(std::string_view text);
  std::string to_string() const;  ///< with the scheme
  bool operator==(const HttpOrigin&) const = default;
};

/// How to read an answer.
struct HttpReading {
  std::uint64_t most_bytes = 64u << 20;  ///< of its body
  /// Receives the body of a successful answer piece by piece, of any length; false ends it.
  std::function<bool(std::string_view)> take = {};
  Duration silence =
      std::chrono::seconds(60);  ///< with `take`: the longest time between two pieces
};

/// A client's connection: requests and their answers, one after the other. After any failure, and
/// after an answer that ends it, it is closed; then `open` makes another one.
///
/// thread  its executor
/// fails   the message is the reason alone. deadline_exceeded; failed_precondition (the server's
///         certificate is not accepted); aborted (TLS); data_loss (no HTTP, or too large);
///         unavailable (the network)
class HttpClient {
 public:
  HttpClient(Executor executor, HttpOrigin origin);
  ~HttpClient();

  /// Connect; `tls` if the origin is secure.
  Task<Status> open(std::shared_ptr<StreamLayer> tls, Deadline deadline);
  bool is_open() const { return stream_ != nullptr; }
  const HttpOrigin& origin() const { return origin_; }
  /// Host and Content-Length are added to the request's fields.
  Task<Result<HttpAnswer>> ask(const HttpRequest& request, const HttpReading& reading,
                               Deadline deadline);

 private:
  const Executor executor_;
  const HttpOrigin origin_;
  std::unique_ptr<HttpStream> stream_;
};

}  // namespace centroid::transport
