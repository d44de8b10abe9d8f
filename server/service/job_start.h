#pragma once

#include "common/async/io_thread.h"
#include "server/service/job_part.h"
#include "server/service/peer_exchange.h"
#include "server/service/round_journal.h"

namespace centroid::server {

/// The job goes on from a state: that takes the place of the one before, the journal behind it is
/// replayed, and a new one begins. Of one thread.
class JobStart : private JobPart {
 public:
  JobStart(JobContext& context, std::unique_ptr<TableServers>& table_servers, ShardGroup& shards,
           LocalShard& local, ModelServers& servers, RoundJournal& round_journal,
           StateImages& images, Checkpointer& checkpointer)
      : JobPart(context),
        table_servers_(table_servers),
        shards_(shards),
        local_(local),
        servers_(servers),
        round_journal_(round_journal),
        images_(images),
        checkpointer_(checkpointer) {}

  /// From another version than the next one; the round that was open does not count.
  void go_on_from(JobState next);
  /// With all chunks on this server: the rounds behind the state's checkpoint.
  Task<Status> begin_replay();
  /// True: the job goes on from the journal's end; false: a server must come first.
  Task<Result<bool>> replay_on();
  /// Once there are parameters. A journal goes on from a checkpoint: the first one comes before.
  Task<Status> start_journal();

 private:
  std::unique_ptr<TableServers>& table_servers_;
  ShardGroup& shards_;
  LocalShard& local_;
  ModelServers& servers_;
  RoundJournal& round_journal_;
  StateImages& images_;
  Checkpointer& checkpointer_;
  IoThread opener_{"opener"};  ///< of the journal: that of files may be writing a checkpoint
};

}  // namespace centroid::server
