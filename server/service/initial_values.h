#pragma once

#include <optional>

#include "common/async/task.h"
#include "server/aggregate/round_policy.h"
#include "server/service/job_part.h"
#include "transport/session.h"

namespace centroid::server {

/// All numbers of a chunk from the payload of a frame. fails invalid_argument: another length
Task<Result<Buffer>> read_numbers(transport::Session& session, const Probe& probe,
                                  std::string where, std::uint64_t elements, std::uint64_t bytes);

/// The job's first parameters, as its first worker sends them. Of one thread.
class InitialValues : private JobPart {
 public:
  explicit InitialValues(JobContext& context) : JobPart(context) {}

  /// Have a worker send them, rank 0 first; true: they are here.
  Task<bool> initialize();
  /// Who sent some of them is gone: the next worker begins anew.
  void forget() { initial_.reset(); }
  Task<Status> take_init_chunk(transport::Session& session, std::shared_ptr<WorkerSession> worker,
                               proto::InitChunk head, std::uint64_t bytes);
  Status init_done(WorkerSession& worker);

 private:
  bool is_initial_from(const WorkerSession& worker) const;
  void ask(MemberId member);
  Task<bool> await_progress();

  std::optional<Initial> initial_;
};

}  // namespace centroid::server
