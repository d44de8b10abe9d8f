#pragma once

#include <array>
#include <map>

#include "common/base/budget.h"
#include "server/api/routes.h"
#include "transport/http/http_server.h"

namespace centroid::server {

/// Series of the REST server. Those of a route are made by its first request: otherwise most of a
/// scrape would be zeros of unused routes. Their number is bounded by the routes. One thread.
class ApiMetrics {
 public:
  explicit ApiMetrics(metrics::Registry& registry);
  /// Count an answered request; `route` null: no such path, or no valid request.
  void count(const Route* route, unsigned status, double seconds);

  transport::HttpMeters http;
  metrics::Counter dropped_lagging;  ///< a stream of events behind the oldest retained event
  metrics::Counter audit_failures;   ///< entries that could not be written
  metrics::Budget requests;          ///< a second, of each address
  metrics::Budget handshakes;        ///< of TLS, the same
  metrics::Budget lines;             ///< about refused requests, in the log
  metrics::Budget event_streams, file_streams;  ///< open
  metrics::Budget answer_bytes;                 ///< of answers that clients have not read yet
  metrics::Budget audit_lines;                  ///< about refused requests of each caller
  metrics::Budget audit_bytes;
  /// Refused requests: without a token, with an unknown one, or with one whose role is too low.
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
