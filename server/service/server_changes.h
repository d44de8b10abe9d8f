#pragma once

#include <memory>

#include "server/service/job_start.h"
#include "server/service/round_attempts.h"

namespace centroid::server {

/// Shard servers that come, go, or are lost: between two rounds the model is made to lie where it
/// is to lie. Of one thread.
class ServerChanges {
 public:
  ServerChanges(const ServerConfig& config, const Clock& clock, Probe& probe, EventLog& events,
                std::unique_ptr<RowsServers>& rows_servers, JobPhase& phase, StopRequest& stopping,
                Event& changed, LeaderGate& gate, Members& members, RoundPolicy& policy,
                JobState& job, OpenRound& open, ShardGroup& shards, Spread& spread, Waits& waits,
                Journal& journal, std::unique_ptr<Replay>& replay, ModelServers& servers,
                ChunkMoves& moves, StateLoader& loader, Checkpointer& checkpointer,
                FileThread& disk, StateUse& use, TaskGroup& tasks, RoundControl& control,
                RoundAttempts& attempts, JobStart& start)
      : config_(config),
        clock_(clock),
        probe_(probe),
        events_(events),
        rows_servers_(rows_servers),
        phase_(phase),
        stopping_(stopping),
        changed_(changed),
        gate_(gate),
        members_(members),
        policy_(policy),
        job_(job),
        open_(open),
        shards_(shards),
        spread_(spread),
        waits_(waits),
        journal_(journal),
        replay_(replay),
        servers_(servers),
        moves_(moves),
        loader_(loader),
        checkpointer_(checkpointer),
        disk_(disk),
        use_(use),
        tasks_(tasks),
        control_(control),
        attempts_(attempts),
        start_(start) {}

  /// False: look again, for something has changed or is still missing.
  Task<Result<bool>> settle_servers();
  /// No round holds up the chunks that a server gives away; else wait for something to change.
  Task<Status> drain_while_paused();
  Result<proto::ServerTerms> admit_server(transport::Session& session, TaskGroup& tasks,
                                          const proto::ServerJoin& join,
                                          std::shared_ptr<ShardGroup::Link>& link);
  void refused_elsewhere(const ShardGroup::Link& server, const proto::Refused& refused);

 private:
  Task<bool> may_move();
  Task<Result<bool>> recover_servers();

  const ServerConfig& config_;
  const Clock& clock_;
  Probe& probe_;
  EventLog& events_;
  std::unique_ptr<RowsServers>& rows_servers_;
  JobPhase& phase_;
  StopRequest& stopping_;
  Event& changed_;
  LeaderGate& gate_;
  Members& members_;
  RoundPolicy& policy_;
  JobState& job_;
  OpenRound& open_;
  ShardGroup& shards_;
  Spread& spread_;
  Waits& waits_;
  Journal& journal_;
  std::unique_ptr<Replay>& replay_;
  ModelServers& servers_;
  ChunkMoves& moves_;
  StateLoader& loader_;
  Checkpointer& checkpointer_;
  FileThread& disk_;
  StateUse& use_;
  TaskGroup& tasks_;
  RoundControl& control_;
  RoundAttempts& attempts_;
  JobStart& start_;
};

}  // namespace centroid::server
