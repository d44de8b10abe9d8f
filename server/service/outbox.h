#pragma once

#include <memory>

#include "server/service/job_part.h"
#include "server/service/peer_exchange.h"
#include "server/service/round_attempts.h"

namespace centroid::server {

/// What the server says to a worker on its own account. Of one thread.
class Outbox : private JobPart {
 public:
  Outbox(JobContext& context, RoundServers& round_servers, ModelServers& servers,
         StateImages& images, ElasticRound& elastic, RoundAttempts& attempts)
      : JobPart(context),
        round_servers_(round_servers),
        servers_(servers),
        images_(images),
        elastic_(elastic),
        attempts_(attempts) {}

  /// Until the session ends.
  Task<void> outbox(std::shared_ptr<WorkerSession> worker, transport::Session& session);

 private:
  Task<Status> open_round(std::shared_ptr<WorkerSession> worker, transport::Session& session,
                          std::shared_ptr<Attempt>& attempt);
  Task<Status> send_result(WorkerSession& worker, transport::Session& session,
                           const Attempt& attempt, const trace::Lane& lane);
  Task<Status> close_late(WorkerSession& worker, transport::Session& session);
  Task<Status> outbox_loop(std::shared_ptr<WorkerSession> worker, transport::Session& session);
  Task<Status> send_state(std::shared_ptr<WorkerSession> worker, transport::Session& session,
                          Version version);

  RoundServers& round_servers_;
  ModelServers& servers_;
  StateImages& images_;
  ElasticRound& elastic_;
  RoundAttempts& attempts_;
};

}  // namespace centroid::server
