#pragma once

#include <cstddef>

#include "common/proto/servers.h"
#include "server/store/server_probe.h"

namespace centroid::server {

/// Metrics of a shard server at its own port (docs/reference/metrics.md). Handles are looked up
/// once.
class ShardProbe : public ServerProbe {
 public:
  explicit ShardProbe(metrics::Registry& registry);

  /// Update from the report to the leader.
  void reported(const proto::ServerReport& report, std::size_t chunks) const;
  /// The server has no state any more.
  void leader_lost();
  /// Observe the seconds of a committed round: sums, step and journal.
  void merged(double seconds) const { merge_seconds_.observe(seconds); }

 private:
  metrics::Gauge has_leader_, chunks_, memory_bytes_, staged_bytes_, sessions_;
  metrics::Histogram merge_seconds_;
};

}  // namespace centroid::server
