#pragma once

#include <vector>

#include "server/service/data_shares.h"
#include "server/service/job_part.h"
#include "server/service/local_shard.h"
#include "server/service/round_servers.h"

namespace centroid::server {

/// Rounds that close without some of their members (policies backup, quorum, asp, ssp).
/// Contributions are kept as they come and summed when the round has closed, so what is left out
/// has left no trace, and results are sent from copies, so a member that does not take them holds
/// nobody up. Who was left out is told so, says Ready when its own work on the round has ended, and
/// gets the newest state with its next RoundOpen. Of one thread.
class ElasticRound : private JobPart {
 public:
  ElasticRound(JobContext& context, DataShares& data, const LocalShard& local,
               const RoundServers& round_servers)
      : JobPart(context), data_(data), local_(local), round_servers_(round_servers) {}

  std::vector<MemberId> seated(std::vector<MemberId> members);
  void seat(WorkerSession& worker);
  void seat_waiting();
  void leave_out(const RoundDecision& decision);
  void resolve_late(WorkerSession& worker, proto::Outcome outcome, bool has_samples = true);
  StagedContribution* stage_for(WorkerSession& worker, const Attempt::Key& key);
  void collect_parts(const RoundDecision& decision);
  void member_ready(WorkerSession& worker, const proto::Computed& done);
  void late_counted(const RoundDecision& decision);

 private:
  DataShares& data_;
  const LocalShard& local_;
  const RoundServers& round_servers_;
};

}  // namespace centroid::server
