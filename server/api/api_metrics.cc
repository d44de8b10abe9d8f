#include "server/api/api_metrics.h"

#include <algorithm>
#include <string>

namespace centroid::server {

namespace {
/// Seconds; few, because every scrape has a histogram of each route.
const std::vector<double> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 10};
}  // namespace

ApiMetrics::ApiMetrics(metrics::Registry& registry) : registry_(registry) {
  http.connections = metrics::budget(registry, "rest_connections");
  http.head_bytes = metrics::budget(registry, "rest_head_bytes");
  requests = metrics::budget(registry, "rest_requests", metrics::BudgetKind::kOfEach);
  handshakes = metrics::budget(registry, "rest_handshakes", metrics::BudgetKind::kOfEach);
  lines = metrics::budget(registry, "rest_lines");
  event_streams = metrics::budget(registry, "rest_event_streams");
  file_streams = metrics::budget(registry, "rest_file_streams");
  answer_bytes = metrics::budget(registry, "rest_answer_bytes");
  audit_lines = metrics::budget(registry, "audit_lines", metrics::BudgetKind::kOfEach);
  audit_bytes = metrics::budget(registry, "audit_bytes", metrics::BudgetKind::kUnguarded);
  const std::string dropped = "centroid_api_dropped_connections_total";
  const std::string dropped_help = "Connections that the REST server closed, by reason.";
  http.dropped_slow = registry.counter(dropped, dropped_help, {{"reason", "slow"}});
  dropped_lagging = registry.counter(dropped, dropped_help, {{"reason", "lagging"}});
  audit_failures = registry.counter("centroid_api_audit_failures_total",
                                    "Entries of the audit log that could not be written.");
  const std::string refused = "centroid_api_refused_total";
  const std::string refused_help = "REST requests that were refused.";
  refused_no_token = registry.counter(refused, refused_help, {{"reason", "no_token"}});
  refused_unknown_token = registry.counter(refused, refused_help, {{"reason", "unknown_token"}});
  refused_role = registry.counter(refused, refused_help, {{"reason", "role"}});
}

ApiMetrics::Series ApiMetrics::make_series(const Route* route) {
  const std::string method(route == nullptr ? "other" : route->method);
  const std::string path(route == nullptr ? "other" : route->path);
  Series series;
  for (const std::size_t hundreds : {2U, 4U, 5U})
    series.classes[hundreds] = registry_.counter(
        "centroid_api_requests_total", "Answered REST requests by route and class of status.",
        {{"method", method}, {"route", path}, {"code", std::to_string(hundreds) + "xx"}});
  series.seconds = registry_.histogram("centroid_api_request_seconds",
                                       "Time from a complete request to its response, by route.",
                                       kBounds, {{"method", method}, {"route", path}});
  return series;
}

void ApiMetrics::count(const Route* route, unsigned status, double seconds) {
  auto at = series_.find(route);
  if (at == series_.end()) at = series_.emplace(route, make_series(route)).first;
  at->second.classes.at(std::min(status / 100, 5U)).add();
  at->second.seconds.observe(seconds);
}

}  // namespace centroid::server
