#pragma once

#include <memory>
#include <optional>

#include "server/service/admission.h"
#include "server/service/departures.h"
#include "server/service/job_context.h"
#include "server/service/outbox.h"
#include "server/service/pulls.h"
#include "server/service/round_loop.h"

namespace centroid::server {

/// The parts of a job's server, each with references to what it needs of the others. Later ones
/// know earlier ones; the other way round goes through RoundControl.
struct JobParts final : public RoundControl {
  JobParts(JobContext& c, metrics::Registry& registry);

  void decide(RoundDecision decision) override { attempts.decide(std::move(decision)); }
  void chunk_complete(ChunkId chunk, double total_weight) override {
    merge.chunk_complete(chunk, total_weight);
  }
  void member_gone(MemberId member, std::optional<Error> tell) override {
    departures.member_gone(member, std::move(tell));
  }

  ShardGroup::Hooks shard_hooks(JobContext& c);

  ShardGroup shards;
  RowsService rows;                             ///< tables; their clients are no members
  std::unique_ptr<TableServers> table_servers;  ///< none: all rows are here
  DataShares data;
  LocalShard local;
  RoundServers round_servers;
  ModelServers servers;
  RoundJournal round_journal;
  StateImages images;
  ElasticRound elastic;
  Contributions contributions;
  InitialValues initial_values;
  ChunkMoves moves;
  StateLoader loader;
  Checkpointer checkpointer;
  PeerExchange exchange;
  WaitReport wait_report;
  RoundAttempts attempts;
  Departures departures;
  RoundMerge merge;
  JobStart start;
  ServerChanges server_changes;
  Restoration restoration;
  Outbox outbox;
  Admission admission;
  RoundLoop rounds;
  Pulls pulls;
};

}  // namespace centroid::server
