#pragma once

#include "server/service/elastic_round.h"
#include "server/service/job_part.h"
#include "server/service/model_servers.h"
#include "server/service/round_control.h"
#include "server/service/state_images.h"

namespace centroid::server {

/// Chunks that go to another server while rounds go on. Between two rounds they get their new owner
/// in the route, some at a time; workers push there from then on. Their values are copied while the
/// round is open, for until it is merged they do not change, and nobody but the merge needs them at
/// the new place. So a round waits only for what is not copied when all contributions are there. Of
/// one thread.
class ChunkMoves : private JobPart {
 public:
  ChunkMoves(JobContext& context, const LocalShard& local, ModelServers& servers,
             ElasticRound& elastic, const StateImages& images, RoundControl& control)
      : JobPart(context),
        local_(local),
        servers_(servers),
        elastic_(elastic),
        images_(images),
        control_(control) {}

  /// `is_first`: no round has been made yet, so there is nothing to hold up.
  Task<Status> move_some(bool is_first);
  Task<Status> finish_moves();

 private:
  const LocalShard& local_;
  ModelServers& servers_;
  ElasticRound& elastic_;
  const StateImages& images_;
  RoundControl& control_;
};

}  // namespace centroid::server
