#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/metrics.h"
#include "transport/stream_layer.h"
#include "transport/transport.h"

namespace centroid::transport {

/// A page of a program's own for GET, made on the listener's thread, which must not wait.
struct MetricsView {
  std::string path;  ///< "/v1/sharded"
  std::function<std::string()> text;
  std::string type = "application/json";
};

struct MetricsOptions {
  Endpoint endpoint;
  std::shared_ptr<StreamLayer> tls = {};  ///< HTTPS with it; none: plain HTTP
  /// Reason for answering 503; none: never. Called on the listener's thread; must not wait.
  std::function<Status()> is_live = {}, is_ready = {};
  std::vector<MetricsView> views = {};
};

/// HTTP/1.1 on one port: GET /metrics (Prometheus text format 0.0.4), the probes GET /livez,
/// /readyz and /healthz (the listener itself answers), GET /v1/trace (the newest 10 s of
/// common/base/trace.h), and views. For programs without REST. It has no token: it only shows
/// numbers about this process, and its views (docs/how-to/monitor.md#prometheus-and-grafana).
///
/// thread  one of its own, so that scrapes and other work never wait for each other
/// bounds  16 connections, 8 KiB of request, no body, 10 s for each request and response, 4 traces
///         at once and then one a second (http_server.h)
class MetricsListener {
 public:
  /// `registry` must outlive it.
  ///
  /// fails   invalid_argument (host unknown, cannot listen), already_exists (port in use)
  static Result<std::unique_ptr<MetricsListener>> start(MetricsOptions options,
                                                        metrics::Registry& registry);
  ~MetricsListener();
  MetricsListener(const MetricsListener&) = delete;
  MetricsListener& operator=(const MetricsListener&) = delete;

  Endpoint endpoint() const;  ///< with the actual address and port

 private:
  struct Impl;
  explicit MetricsListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::transport
