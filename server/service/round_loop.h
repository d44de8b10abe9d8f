#pragma once

#include "server/service/initial_values.h"
#include "server/service/restoration.h"
#include "server/service/round_merge.h"
#include "server/service/server_changes.h"

namespace centroid::server {

/// The job's course: one thing after the other, until its goal or a stop. Of one thread.
class RoundLoop {
 public:
  RoundLoop(const ServerConfig& config, const Clock& clock, Probe& probe, EventLog& events,
            JobPhase& phase, StopRequest& stopping, Event& changed, LeaderGate& gate,
            OperatorCommands& commands, Members& members, RoundPolicy& policy,
            const AggregateRule& aggregate, JobState& job, OpenRound& open, JobTotals& totals,
            ShardGroup& shards, Spread& spread, Journal& journal, std::unique_ptr<Replay>& replay,
            Event& outgoing, DataShares& data, ModelServers& servers, RoundJournal& round_journal,
            ElasticRound& elastic, InitialValues& initial_values, Checkpointer& checkpointer,
            PeerExchange& exchange, StateUse& use, std::shared_ptr<RestoreWanted>& restore,
            RoundAttempts& attempts, RoundMerge& merge, JobStart& start,
            ServerChanges& server_changes, Restoration& restoration)
      : config_(config),
        clock_(clock),
        probe_(probe),
        events_(events),
        phase_(phase),
        stopping_(stopping),
        changed_(changed),
        gate_(gate),
        commands_(commands),
        members_(members),
        policy_(policy),
        aggregate_(aggregate),
        job_(job),
        open_(open),
        totals_(totals),
        shards_(shards),
        spread_(spread),
        journal_(journal),
        replay_(replay),
        outgoing_(outgoing),
        data_(data),
        servers_(servers),
        round_journal_(round_journal),
        elastic_(elastic),
        initial_values_(initial_values),
        checkpointer_(checkpointer),
        exchange_(exchange),
        use_(use),
        restore_(restore),
        attempts_(attempts),
        merge_(merge),
        start_(start),
        server_changes_(server_changes),
        restoration_(restoration) {}

  /// fails: the job halts
  Task<Status> run_rounds();

 private:
  Task<Status> one_round();
  Task<Status> merge_round(RoundDecision decision);
  Task<Status> skip_round(RoundDecision decision);
  Task<bool> wait_for_members();
  void dismiss_drained();
  Task<void> apply_changes();
  void round_over();

  const ServerConfig& config_;
  const Clock& clock_;
  Probe& probe_;
  EventLog& events_;
  JobPhase& phase_;
  StopRequest& stopping_;
  Event& changed_;
  LeaderGate& gate_;
  OperatorCommands& commands_;
  Members& members_;
  RoundPolicy& policy_;
  const AggregateRule& aggregate_;
  JobState& job_;
  OpenRound& open_;
  JobTotals& totals_;
  ShardGroup& shards_;
  Spread& spread_;
  Journal& journal_;
  std::unique_ptr<Replay>& replay_;
  Event& outgoing_;
  DataShares& data_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  ElasticRound& elastic_;
  InitialValues& initial_values_;
  Checkpointer& checkpointer_;
  PeerExchange& exchange_;
  StateUse& use_;
  std::shared_ptr<RestoreWanted>& restore_;
  RoundAttempts& attempts_;
  RoundMerge& merge_;
  JobStart& start_;
  ServerChanges& server_changes_;
  Restoration& restoration_;
};

}  // namespace centroid::server
