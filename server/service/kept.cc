#include "server/service/kept.h"

#include <utility>

namespace centroid::server {

namespace {

void not_kept(EventLog& events, const Link& link, Round round, const std::string& why) {
  tell(events, log::Level::kWarn, "checkpoint.state_save_failed",
       {{"worker", link.join.name}, {"round", round.value}, {"why", why}});
}

}  // namespace

void keep_reported(EventLog& events, Link& link, Round round) {
  keep_unanswered(events, link, "it had not answered when it was to keep the next one");
  if (link.own_state.tells_kept) link.own_state.keeping = round;
}

void keep_answered(EventLog& events, Link& link, const proto::Kept& kept) {
  link.own_state.tells_kept = true;
  if (kept.state == proto::SavedState::kWillReport) return;
  if (link.own_state.keeping == kept.round) link.own_state.keeping.reset();
  if (kept.state == proto::SavedState::kNotSaved) not_kept(events, link, kept.round, kept.why);
}

void keep_unanswered(EventLog& events, Link& link, const std::string& why) {
  if (!link.own_state.keeping) return;
  const Round round = *std::exchange(link.own_state.keeping, std::nullopt);
  not_kept(events, link, round, why);
}

}  // namespace centroid::server
