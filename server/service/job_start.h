#pragma once

#include "server/service/operator_commands.h"
#include "server/service/peer_exchange.h"
#include "server/service/round_journal.h"

namespace centroid::server {

/// The job goes on from a state: that takes the place of the one before, the journal behind it is
/// replayed, and a new one begins. Of one thread.
class JobStart {
 public:
  JobStart(Executor executor, const ServerConfig& config, const Clock& clock, Probe& probe,
           std::unique_ptr<RowsServers>& rows_servers, JobPhase& phase, StopRequest& stopping,
           Event& changed, LeaderGate& gate, OperatorCommands& commands, Members& members,
           RoundPolicy& policy, JobState& job, OpenRound& open, ShardGroup& shards, Spread& spread,
           Waits& waits, Journal& journal, std::unique_ptr<Replay>& replay, LocalShard& local,
           ModelServers& servers, RoundJournal& round_journal, StateImages& images,
           Checkpointer& checkpointer, FileThread& disk, StateUse& use,
           std::shared_ptr<RestoreWanted>& restore)
      : executor_(std::move(executor)),
        config_(config),
        clock_(clock),
        probe_(probe),
        rows_servers_(rows_servers),
        phase_(phase),
        stopping_(stopping),
        changed_(changed),
        gate_(gate),
        commands_(commands),
        members_(members),
        policy_(policy),
        job_(job),
        open_(open),
        shards_(shards),
        spread_(spread),
        waits_(waits),
        journal_(journal),
        replay_(replay),
        local_(local),
        servers_(servers),
        round_journal_(round_journal),
        images_(images),
        checkpointer_(checkpointer),
        disk_(disk),
        use_(use),
        restore_(restore) {}

  /// From another version than the next one; the round that was open does not count.
  void go_on_from(JobState next);
  /// With all chunks on this server: the rounds behind the state's checkpoint.
  Status begin_replay();
  /// True: the job goes on from the journal's end; false: a server must come first.
  Task<Result<bool>> replay_on();
  /// Once there are parameters. A journal goes on from a checkpoint: the first one comes before.
  Task<Status> start_journal();

 private:
  const Executor executor_;
  const ServerConfig& config_;
  const Clock& clock_;
  Probe& probe_;
  std::unique_ptr<RowsServers>& rows_servers_;
  JobPhase& phase_;
  StopRequest& stopping_;
  Event& changed_;
  LeaderGate& gate_;
  OperatorCommands& commands_;
  Members& members_;
  RoundPolicy& policy_;
  JobState& job_;
  OpenRound& open_;
  ShardGroup& shards_;
  Spread& spread_;
  Waits& waits_;
  Journal& journal_;
  std::unique_ptr<Replay>& replay_;
  LocalShard& local_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  StateImages& images_;
  Checkpointer& checkpointer_;
  FileThread& disk_;
  StateUse& use_;
  std::shared_ptr<RestoreWanted>& restore_;
};

}  // namespace centroid::server
