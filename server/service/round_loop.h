#pragma once

#include "server/coordinate/job_machine.h"
#include "server/service/initial_values.h"
#include "server/service/job_part.h"
#include "server/service/restoration.h"
#include "server/service/round_merge.h"
#include "server/service/server_changes.h"

namespace centroid::server {

/// The job's course: one thing after the other, until its goal or a stop. Of one thread.
class RoundLoop : private JobPart {
 public:
  RoundLoop(JobContext& context, ShardGroup& shards, DataShares& data, ModelServers& servers,
            RoundJournal& round_journal, ElasticRound& elastic, InitialValues& initial_values,
            Checkpointer& checkpointer, PeerExchange& exchange, RoundAttempts& attempts,
            RoundMerge& merge, JobStart& start, ServerChanges& server_changes,
            Restoration& restoration)
      : JobPart(context),
        shards_(shards),
        data_(data),
        servers_(servers),
        round_journal_(round_journal),
        elastic_(elastic),
        initial_values_(initial_values),
        checkpointer_(checkpointer),
        exchange_(exchange),
        attempts_(attempts),
        merge_(merge),
        start_(start),
        server_changes_(server_changes),
        restoration_(restoration) {}

  /// fails: the job halts
  Task<Status> run_rounds();

 private:
  JobFacts facts() const;
  Task<Result<bool>> keep_goal(std::size_t& away);
  Task<Result<bool>> make(JobStep step);
  Task<Status> one_round();
  Task<Result<bool>> open_again(const RoundDecision& decision);
  Status compare_replicas();
  Task<Status> merge_round(RoundDecision decision);
  Task<Status> skip_round(RoundDecision decision);
  Task<Status> refuse_overflow(RoundDecision decision);
  Error halt_of(const RoundDecision& decision) const;
  Task<bool> wait_for_members();
  std::uint64_t count_away() const;
  void dismiss_drained();
  Task<void> apply_changes();
  void round_over();

  ShardGroup& shards_;
  DataShares& data_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  ElasticRound& elastic_;
  InitialValues& initial_values_;
  Checkpointer& checkpointer_;
  PeerExchange& exchange_;
  RoundAttempts& attempts_;
  RoundMerge& merge_;
  JobStart& start_;
  ServerChanges& server_changes_;
  Restoration& restoration_;
};

}  // namespace centroid::server
