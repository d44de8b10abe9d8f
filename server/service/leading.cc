#include "common/base/log.h"
#include "common/proto/standby.h"
#include "server/service/cluster.h"

/// One server of several: how it takes the job over, and how it gives it away
/// (docs/high-availability.md).
namespace centroid::server {

namespace {
/// Between two looks at the fence while it is closed.
constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::seconds kGoodbye{2};
/// Of what fails as if the lease were late although it is not: its file cannot be read.
constexpr int kTries = 5;
}  // namespace

void Cluster::stand_by(Fence& fence) {
  rows_.lead_by([&fence] { return fence.holds(); });
  gate_.stand_by(fence);
}

/// Wait for the lead, if there is an election, then take up the state of before: the ports are open
/// meanwhile, and who comes is told what is waited for. Returns without the lead when a stop was
/// requested.
Task<Status> Cluster::take_the_lead() {
  if (!gate_.has_election()) {
    if (!gate_.is_prepared()) CENTROID_CO_TRY(co_await prepare());
    const double age = std::chrono::duration<double>(clock_.now() - started_).count();
    log::info("server.ready", {{"round", job_.round.value}, {"seconds", age}});
    co_return Status();
  }
  co_await gate_.await_lead();
  if (!gate_.has_led()) co_return Status();
  const TimePoint begin = clock_.now();
  phase_.explain("the state of the leader before is taken up");
  Status taken = co_await gate_.take_folder(disk_.hurried());
  if (!taken.ok() && stopping_.is_requested && !gate_.is_deposed()) co_return Status();
  CENTROID_CO_TRY(std::move(taken));
  CENTROID_CO_TRY(co_await prepare());
  phase_.set(Phase::kWaiting, "workers come back to this server");
  log::info("leader.began",
            {{"term", gate_.leadership().term},
             {"round", job_.round.value},
             {"seconds", std::chrono::duration<double>(clock_.now() - begin).count()}});
  co_return Status();
}

/// Of a deposed server: to the leader, where it is known.
Task<void> Cluster::send_workers_away() {
  const Leadership& present = gate_.leadership();
  const bool is_known = present.role == Election::Role::kDeposed;
  const Error where =
      proto::standby_error(is_known ? present.leader : "", is_known ? present.data : "");
  for (const auto& [id, link] : members_.links) link->tasks->spawn(link->session->goodbye(where));
  const TimePoint limit = clock_.now() + kGoodbye;
  while (!members_.links.empty() && clock_.now() < limit) co_await changed_.wait(limit);
}

/// Where the lease is late it is waited for, after a stop not for long.
Task<void> Cluster::write_last_checkpoint() {
  std::optional<TimePoint> limit;
  const auto may_wait = [&] {
    if (stopping_.is_requested && !limit) limit = clock_.now() + config_.drain_timeout;
    return clock_.now() < limit.value_or(TimePoint::max());
  };
  int tries = 0;
  while (checkpointer_.needs_checkpoint() && !gate_.is_deposed()) {
    const auto written = co_await checkpointer_.write_checkpoint(false);
    if (written.ok()) co_return;
    if (!gate_.is_late(written.error()) || !may_wait() ||
        (gate_.holds().ok() && ++tries > kTries)) {
      tell(events_, log::Level::kError, "checkpoint.failed",
           {{"why", written.error()}, {"when", "at the end"}});
      co_return;
    }
    log::warn("checkpoint.waits", {{"why", written.error()}, {"action", "it is tried again"}});
    do {
      co_await changed_.wait(clock_.now() + kLook);
    } while (!gate_.holds().ok() && !gate_.is_deposed() && may_wait());
  }
}

}  // namespace centroid::server
