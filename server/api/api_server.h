#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/task.h"
#include "common/base/metrics.h"
#include "common/base/result.h"
#include "server/api/view.h"
#include "server/tokens/token_store.h"
#include "transport/http/http_server.h"

namespace centroid::server {

/// What clients may cost. Can be changed while the server runs.
struct ApiLimits : transport::HttpLimits {
  std::size_t max_streams = 64;  ///< of events, and of files, sent at a time
  /// Of one address, after a second's worth at once; 0: no bound. Of handshakes of TLS, which cost
  /// much more, a fifth.
  double requests_per_second = 0;
};

/// Where the REST server listens, who may call, and what a client may cost.
struct ApiOptions : ApiLimits {
  transport::Endpoint endpoint;   ///< port 0 asks for a free one
  std::string token;              ///< bearer token; may be empty on loopback only
  std::string viewer_token = {};  ///< another one that may only read; needs `token`

  std::shared_ptr<transport::StreamLayer> tls = {};  ///< HTTPS with it; none: plain HTTP

  /// Holds tokens.json and audit.jsonl; empty: in memory only.
  std::string state_dir = {};
  std::string state_name = {};  ///< of this server, where several have one `state_dir`
  Executor blocking = {};       ///< where files may be waited for; empty: the server's own

  std::size_t max_idempotency_keys = 1000;
  std::size_t max_abandoned = 64;  ///< calls past their deadline that have not ended yet
  /// A service thread that has not answered for so long hangs: longer than anything that it does at
  /// a stretch, which is to read a checkpoint for a restore.
  std::chrono::milliseconds hang_after{300'000};
  std::vector<std::string> certificates = {};  ///< PEM files that are shown, for GET /v1/host
  std::size_t max_held_bytes = 256u << 20;     ///< of answers that clients have not taken yet

  std::chrono::milliseconds heartbeat{15'000};     ///< in a stream of events without any
  std::chrono::milliseconds call_timeout{10'000};  ///< one call of the ControlPlane
  std::chrono::milliseconds checkpoint_timeout{300'000};
  std::chrono::milliseconds idempotency_lifetime{3'600'000};
  std::chrono::milliseconds stop_grace{2'000};  ///< running requests may end by themselves so long
};

/// HTTP/1.1 server of the control plane: REST, probes, metrics and the OpenAPI document
/// (docs/reference/rest.md).
///
/// thread  everything runs on `executor` (one thread or a strand); `stop` may be awaited from any
/// owns    its sockets and every coroutine it started; `control` and `registry` must outlive it
/// bounds  every read, write and call has a deadline; connections and sizes are limited
class ApiServer {
 public:
  /// Bind, listen and serve.
  ///
  /// fails   failed_precondition (not loopback and no token), invalid_argument (host unknown, token
  ///         not sendable, a limit is zero), already_exists (port in use)
  static Result<std::unique_ptr<ApiServer>> start(Executor executor, ApiOptions options,
                                                  ControlPlane& control,
                                                  metrics::Registry& registry);
  /// Whether a secret is that of a named token that may join the cluster as a worker. Any thread.
  bool may_join(std::string_view secret) const;
  /// By which other servers know tokens that may. Any thread.
  std::vector<TokenDigest> joining_tokens() const;
  /// From now on these hold, for connections that are open too. Any thread; before `stop`.
  void set_limits(const ApiLimits& limits);
  /// Only after `stop` has returned.
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  transport::Endpoint endpoint() const;  ///< with the real address and port

  /// Close the listener and idle connections, let running requests end within `stop_grace`, then
  /// cancel them (their clients get 503) and wait until nothing is left. Call it before
  /// destruction; again is harmless.
  Task<void> stop();

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::server
