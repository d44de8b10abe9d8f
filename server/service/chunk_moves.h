#pragma once

#include "server/service/elastic_round.h"
#include "server/service/model_servers.h"
#include "server/service/round_control.h"
#include "server/service/state_images.h"

namespace centroid::server {

/// Chunks that go to another server while rounds go on. Between two rounds they get their new owner
/// in the route, some at a time; workers push there from then on. Their values are copied while the
/// round is open, for until it is merged they do not change, and nobody but the merge needs them at
/// the new place. So a round waits only for what is not copied when all contributions are there. Of
/// one thread.
class ChunkMoves {
 public:
  ChunkMoves(const Clock& clock, JobState& job, OpenRound& open, Members& members, Spread& spread,
             const LocalShard& local, ModelServers& servers, ElasticRound& elastic,
             const StateImages& images, RoundControl& control, Waits& waits, Event& changed,
             TaskGroup& tasks)
      : clock_(clock),
        job_(job),
        open_(open),
        members_(members),
        spread_(spread),
        local_(local),
        servers_(servers),
        elastic_(elastic),
        images_(images),
        control_(control),
        waits_(waits),
        changed_(changed),
        tasks_(tasks) {}

  /// `is_first`: no round has been made yet, so there is nothing to hold up.
  Task<Status> move_some(bool is_first);
  Task<Status> finish_moves();

 private:
  const Clock& clock_;
  JobState& job_;
  OpenRound& open_;
  Members& members_;
  Spread& spread_;
  const LocalShard& local_;
  ModelServers& servers_;
  ElasticRound& elastic_;
  const StateImages& images_;
  RoundControl& control_;
  Waits& waits_;
  Event& changed_;
  TaskGroup& tasks_;
};

}  // namespace centroid::server
