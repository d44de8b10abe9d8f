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

/// Limits on clients. Can be changed while the server runs.
struct ApiLimits : transport::HttpLimits {
  std::size_t max_streams = 64;  ///< of events, and of files, sent at a time
  /// Of one address, with a burst of one second; 0: no limit. Handshakes of TLS, which cost much
  /// more, have a fifth.
  double requests_per_second = 0;
};

/// Address, access and limits of the REST server.
struct ApiOptions : ApiLimits {
  transport::Endpoint endpoint;   ///< port 0 selects a free one
  std::string token;              ///< bearer token; may be empty on loopback only
  std::string viewer_token = {};  ///< another one that may only read; needs `token`

  std::shared_ptr<transport::StreamLayer> tls = {};  ///< HTTPS with it; none: plain HTTP

  /// Folder of tokens.json and audit.jsonl; empty: in memory only.
  std::string state_dir = {};
  std::string state_name = {};  ///< of this server, if several have one `state_dir`
  Executor blocking = {};       ///< for blocking file operations; empty: the server's own

  std::size_t max_idempotency_keys = 1000;
  std::size_t max_abandoned = 64;  ///< calls past their deadline that have not ended yet
  /// A service thread without an answer for this long hangs: longer than any single operation, such
  /// as reading a checkpoint for a restore.
  std::chrono::milliseconds hang_after{300'000};
  std::vector<std::string> certificates = {};  ///< PEM files that are shown, for GET /v1/host
  std::size_t max_pending_bytes = 256u << 20;  ///< of answers that clients have not read yet

  std::chrono::milliseconds heartbeat{15'000};     ///< in a stream of events without any
  std::chrono::milliseconds call_timeout{10'000};  ///< one call of the ControlPlane
  std::chrono::milliseconds checkpoint_timeout{300'000};
  std::chrono::milliseconds idempotency_lifetime{3'600'000};
  std::chrono::milliseconds stop_grace{2'000};  ///< time for running requests to end by themselves
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
  /// Digests by which other servers recognize such tokens. Any thread.
  std::vector<TokenDigest> joining_tokens() const;
  /// Apply new limits, also to open connections. Any thread; before `stop`.
  void set_limits(const ApiLimits& limits);
  /// Only after `stop` has returned.
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  transport::Endpoint endpoint() const;  ///< with the actual address and port

  /// Close the listener and idle connections, let running requests end within `stop_grace`, then
  /// cancel them (their clients receive 503) and wait for all. Call it before destruction;
  /// repeating it is harmless.
  Task<void> stop();

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::server
