#include "server/service/job_context.h"

#include "common/base/log_level.h"

namespace centroid::server {

/// What looks at settings when it is told to; the rest looks at them between two rounds.
void JobContext::settings_changed() {
  members.roster.set_limits(config.lease, static_cast<std::size_t>(config.max_workers));
  log::set_level(log::parse_level(config.log_level).value());
  commands.is_changed = true;
  changed.notify_all();
  if (on_settings) on_settings();
}

}  // namespace centroid::server
