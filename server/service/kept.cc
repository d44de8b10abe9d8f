#include "server/service/kept.h"

#include <utility>

namespace centroid::server {

namespace {

void not_kept(EventLog& events, const WorkerSession& worker, Round round, const std::string& why) {
  tell(events, log::Level::kWarn, "checkpoint.state_save_failed",
       {{"worker", worker.join.name}, {"round", round.value}, {"why", why}});
}

}  // namespace

void keep_reported(EventLog& events, WorkerSession& worker, Round round) {
  keep_unanswered(events, worker, "it had not answered when it was to keep the next one");
  if (worker.own_state.tells_kept) worker.own_state.keeping = round;
}

void keep_answered(JobContext& context, WorkerSession& worker, const proto::Kept& kept) {
  worker.own_state.tells_kept = true;
  if (kept.state == proto::SavedState::kWillReport) return;
  if (worker.own_state.keeping == kept.round) worker.own_state.keeping.reset();
  if (kept.state != proto::SavedState::kNotSaved) return;
  if (const auto why = context.strangers.member_line(kept.why))
    not_kept(context.events, worker, kept.round, *why);
}

void keep_unanswered(EventLog& events, WorkerSession& worker, const std::string& why) {
  if (!worker.own_state.keeping) return;
  const Round round = *std::exchange(worker.own_state.keeping, std::nullopt);
  not_kept(events, worker, round, why);
}

}  // namespace centroid::server
