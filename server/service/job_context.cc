#include "server/service/job_context.h"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/log_level.h"
#include "common/base/thread.h"

namespace centroid::server {

JobContext::JobContext(Executor on, Executor blocking, const ServerConfig& settings,
                       const Clock& time, metrics::Registry& registry)
    : executor(on),
      config(settings),
      clock(time),
      disk{std::move(blocking),
           std::make_shared<DutyCycle>(settings.checkpoint.processor_share * core_count())},
      combining(on, "combine", std::min<std::size_t>(Aggregator::kAtOnce, core_count())),
      probe(registry),
      events(time),
      phase(time, events, probe),
      changed_shared(std::make_shared<Event>(on)),
      changed(*changed_shared),
      gate(time, changed, phase, stopping),
      commands(on, disk.executor, settings, time, gate, job),
      members({.lease = settings.timeouts.lease,
               .max_members = static_cast<std::size_t>(settings.workers.max)}),
      policy(policy_of(settings)),
      aggregate(AggregateRule::parse(settings.aggregate).value()),
      open(policy),
      waits(time, changed),
      journal(on),
      strangers(transport::places_beside(settings.workers.max), &registry),
      tasks(on) {
  job.run_id = settings.run_id;
  strangers.lend_while([this] { return awaits_workers && config.tables.empty(); });
}

JobContext::~JobContext() = default;

/// What looks at settings when it is told to; the rest looks at them between two rounds.
void JobContext::settings_changed() {
  members.roster.set_limits(config.timeouts.lease, static_cast<std::size_t>(config.workers.max));
  strangers.set_connections(transport::places_beside(config.workers.max));
  log::set_level(log::parse_level(config.log.level).value());
  commands.is_changed = true;
  changed.notify_all();
  if (on_settings) on_settings();
}

std::function<void()> JobContext::notifier() const {
  return [on = executor, event = changed_shared] {
    boost::asio::post(on, [event] { event->notify_all(); });
  };
}

}  // namespace centroid::server
