#pragma once

#include <memory>

#include "server/service/job_part.h"
#include "server/service/job_start.h"
#include "server/service/round_attempts.h"

namespace centroid::server {

/// Shard servers that come, go, or are lost: between two rounds the model is made to lie where it
/// is to lie. Of one thread.
class ServerChanges : private JobPart {
 public:
  ServerChanges(JobContext& context, std::unique_ptr<TableServers>& table_servers,
                ShardGroup& shards, ModelServers& servers, ChunkMoves& moves, StateLoader& loader,
                Checkpointer& checkpointer, RoundControl& control, RoundAttempts& attempts,
                JobStart& start)
      : JobPart(context),
        table_servers_(table_servers),
        shards_(shards),
        servers_(servers),
        moves_(moves),
        loader_(loader),
        checkpointer_(checkpointer),
        control_(control),
        attempts_(attempts),
        start_(start) {}

  /// False: look again, for something has changed or is still missing.
  Task<Result<bool>> resolve_servers();
  /// No round holds up the chunks that a server gives away; else wait for something to change.
  Task<Status> drain_while_paused();
  Result<proto::ServerTerms> admit_server(transport::Session& session, TaskGroup& tasks,
                                          const proto::ServerJoin& join,
                                          std::shared_ptr<ShardSession>& shard);
  void refused_elsewhere(const ShardSession& server, const proto::Refused& refused);

 private:
  Task<bool> may_move();
  Task<Result<bool>> recover_servers();

  std::unique_ptr<TableServers>& table_servers_;
  ShardGroup& shards_;
  ModelServers& servers_;
  ChunkMoves& moves_;
  StateLoader& loader_;
  Checkpointer& checkpointer_;
  RoundControl& control_;
  RoundAttempts& attempts_;
  JobStart& start_;
};

}  // namespace centroid::server
