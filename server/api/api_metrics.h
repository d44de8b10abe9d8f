#pragma once

#include <array>
#include <map>

#include "common/base/metrics.h"
#include "server/api/routes.h"
#include "transport/http/http_server.h"

namespace centroid::server {

/// Series of the REST server. Those of a route are made by its first request: most of a scrape
/// would be zeros of routes that nobody calls. Their number is bounded by the routes. One thread.
class ApiMetrics {
 public:
  explicit ApiMetrics(metrics::Registry& registry);
  /// One answered request; `route` null: no such path, or not even a request.
  void count(const Route* route, unsigned status, double seconds);

  transport::HttpMeters http;
  metrics::Counter dropped_lagging;     ///< a stream of events further behind than events are kept
  metrics::Counter audit_failures;      ///< entries that the disk did not take
  metrics::Counter dropped_handshakes;  ///< of TLS, of an address that has made too many
  metrics::Gauge streams;               ///< open
  metrics::Gauge held_bytes;            ///< of answers that clients have not taken yet
  /// Requests that were not let in: without a token, with one that is not known, or with one that
  /// may less.
  metrics::Counter refused_no_token, refused_unknown_token, refused_role;

 private:
  struct Series {
    std::array<metrics::Counter, 6> classes;  ///< [2] for 2xx
    metrics::Histogram seconds;
  };
  Series make_series(const Route* route);

  metrics::Registry& registry_;
  std::map<const Route*, Series> series_;
};

}  // namespace centroid::server
