#include "server/shard/shard_probe.h"

namespace centroid::server {

ShardProbe::ShardProbe(metrics::Registry& r) : ServerProbe(r) {
  r.gauge("centroid_server_role",
          "1 for the role of this server: leader (also a single server), standby or shard server.",
          {{"role", "shard"}})
      .set(1);
  has_leader_ =
      r.gauge("centroid_server_has_leader", "1: this shard server has a session with the leader.");
  chunks_ =
      r.gauge("centroid_server_held_chunks", "Chunks of the model that lie on this shard server.");
  memory_bytes_ =
      r.gauge("centroid_server_held_bytes",
              "Memory for parameters, optimizer state and prepared results on this shard server.");
  staged_bytes_ =
      r.gauge("centroid_server_staged_bytes",
              "Bytes of contributions that this shard server stores until their round closes.");
  sessions_ = r.gauge("centroid_server_worker_sessions",
                      "Workers that have a session with this shard server.");
  merge_seconds_ =
      r.histogram("centroid_server_merge_seconds",
                  "Time for sums, optimizer step and journal of a round on this shard server.",
                  metrics::latency_bounds());
}

void ShardProbe::reported(const proto::ServerReport& report, std::size_t chunks) const {
  has_leader_.set(1);
  chunks_.set(static_cast<double>(chunks));
  memory_bytes_.set(static_cast<double>(report.memory_bytes));
  staged_bytes_.set(static_cast<double>(report.staged_bytes));
  sessions_.set(report.workers);
}

void ShardProbe::leader_lost() {
  reported(proto::ServerReport(), 0);
  journal(JournalWriter::State());
  has_leader_.set(0);
}

}  // namespace centroid::server
