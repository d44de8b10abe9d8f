#pragma once

#include <memory>
#include <optional>

#include "common/base/metrics.h"
#include "transport/tls/tls_files.h"
#include "transport/transport.h"

namespace centroid::worker {

/// HTTP/1.1 on one port: GET /metrics (Prometheus text format 0.0.4), GET /healthz and GET
/// /v1/trace (the newest 10 s of common/base/trace.h), nothing else; HTTPS where it is given files.
/// It has no token: what it tells are numbers about this worker (docs/operations.md).
///
/// thread  one of its own, so that a scrape waits for nothing and nothing waits for a scrape
/// bounds  16 connections: one more takes the place of the newest that has asked nothing, else of
/// who
///         has been silent for longest; 8 KiB of request, no body, 10 s for each request and
///         response, 4 traces at once and then one a second
class MetricsListener {
 public:
  /// `registry` must outlive it. `tls`: HTTPS with these; none: plain HTTP.
  ///
  /// fails   invalid_argument (host unknown, cannot listen), already_exists (port in use)
  static Result<std::unique_ptr<MetricsListener>> start(
      const transport::Endpoint& endpoint, const metrics::Registry& registry,
      std::optional<transport::TlsFiles> tls = {});
  ~MetricsListener();
  MetricsListener(const MetricsListener&) = delete;
  MetricsListener& operator=(const MetricsListener&) = delete;

  transport::Endpoint endpoint() const;  ///< with the real address and port

 private:
  struct Impl;
  explicit MetricsListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::worker
