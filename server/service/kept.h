#pragma once

#include <string>

#include "common/proto/about.h"
#include "server/service/job_context.h"
#include "server/service/worker_session.h"

namespace centroid::server {

/// Whether members keep their own part of the state that a checkpoint is of: what error feedback
/// has left to send, or local training. One that did not is event checkpoint.state_save_failed; of
/// programs that do not tell, and of workers without a state_dir, nothing is said.

/// It is told to keep its state after this round.
void keep_reported(EventLog& events, WorkerSession& worker, Round round);
void keep_answered(JobContext& context, WorkerSession& worker, const proto::Kept& kept);
/// No answer will come any more.
void keep_unanswered(EventLog& events, WorkerSession& worker, const std::string& why);

}  // namespace centroid::server
