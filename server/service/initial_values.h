#pragma once

#include <optional>

#include "common/async/task.h"
#include "server/aggregate/round_policy.h"
#include "server/service/leader_gate.h"
#include "server/service/members.h"
#include "server/service/probe.h"
#include "server/state/job_state.h"
#include "transport/session.h"

namespace centroid::server {

/// All numbers of a chunk from the payload of a frame. fails invalid_argument: another length
Task<Result<Buffer>> read_numbers(transport::Session& session, const Probe& probe,
                                  std::string where, std::uint64_t elements, std::uint64_t bytes);

/// The job's first parameters, as its first worker sends them. Of one thread.
class InitialValues {
 public:
  InitialValues(const RoundPolicy& policy, JobState& job, Members& members, JobPhase& phase,
                const StopRequest& stopping, const LeaderGate& gate, const Probe& probe,
                Event& changed, Event& outgoing)
      : policy_(policy),
        job_(job),
        members_(members),
        phase_(phase),
        stopping_(stopping),
        gate_(gate),
        probe_(probe),
        changed_(changed),
        outgoing_(outgoing) {}

  /// Have rank 0 send them; true: they are here.
  Task<bool> initialize();
  /// Who sent some of them is gone: the next worker begins anew.
  void forget() { initial_.reset(); }
  Task<Status> take_init_chunk(transport::Session& session, std::shared_ptr<Link> link,
                               proto::InitChunk head, std::uint64_t bytes);
  Status init_done(Link& link);

 private:
  bool is_initial_from(const Link& link) const;

  const RoundPolicy& policy_;
  JobState& job_;
  Members& members_;
  JobPhase& phase_;
  const StopRequest& stopping_;
  const LeaderGate& gate_;
  const Probe& probe_;
  Event& changed_;
  Event& outgoing_;
  std::optional<Initial> initial_;
};

}  // namespace centroid::server
