#include "common/base/log.h"
#include "common/base/refusal.h"
#include "server/service/job_server.h"
#include "server/service/waits.h"

/// One server of several: how it takes the job over, and how it gives it away
/// (docs/how-to/high-availability.md#why-two-leaders-cannot-write).
namespace centroid::server {

namespace {
constexpr std::chrono::seconds kGoodbye{2};
/// Of what fails as if the lease were late although it is not: its file cannot be read.
constexpr int kTries = 5;
}  // namespace

void JobServer::stand_by(Fence& fence) {
  parts_.rows.lead_by([&fence] { return fence.holds(); });
  ctx_.gate.stand_by(fence);
}

/// Wait for the lead, if there is an election, then take up the state of before: the ports are open
/// meanwhile, and who comes is told what is waited for. Returns without the lead when a stop was
/// requested.
Task<Status> JobServer::take_the_lead() {
  if (!ctx_.gate.has_election()) {
    if (!ctx_.gate.is_prepared()) CENTROID_CO_TRY(co_await prepare());
    const double age = std::chrono::duration<double>(ctx_.clock.now() - started_).count();
    log::info("server.initialized", {{"round", ctx_.job.round.value}, {"seconds", age}});
    co_return Status();
  }
  co_await ctx_.gate.await_lead();
  if (!ctx_.gate.has_led()) co_return Status();
  const TimePoint begin = ctx_.clock.now();
  ctx_.phase.explain("the state of the leader before is taken up");
  Status taken = co_await ctx_.gate.take_folder(ctx_.disk.hurried());
  if (!taken.ok() && ctx_.stopping.is_requested && !ctx_.gate.is_deposed()) co_return Status();
  CENTROID_CO_TRY(std::move(taken));
  CENTROID_CO_TRY(co_await prepare());
  ctx_.phase.set(Phase::kWaiting, "workers come back to this server");
  log::info("leader.started",
            {{"term", ctx_.gate.leadership().term},
             {"round", ctx_.job.round.value},
             {"seconds", std::chrono::duration<double>(ctx_.clock.now() - begin).count()}});
  co_return Status();
}

/// Of a deposed server: to the leader, where it is known.
Task<void> JobServer::send_workers_away() {
  const Leadership& present = ctx_.gate.leadership();
  const bool is_known = present.role == Election::Role::kDeposed;
  const Error where = not_leader(is_known ? present.leader : "", is_known ? present.data : "");
  for (const auto& [id, worker] : ctx_.members.present)
    worker->tasks->spawn(worker->session->goodbye(where));
  const TimePoint limit = ctx_.clock.now() + kGoodbye;
  const auto are_gone = [this] { return ctx_.members.present.empty(); };
  BlockedOn on{WaitCause::kWorkers, "this server", "workers",
               [] { return "the end of their sessions: another server leads"; }};
  (void)co_await ctx_.waits.until(are_gone, std::move(on), limit);
}

/// Where the lease is late it is waited for, after a stop not for long.
Task<void> JobServer::write_last_checkpoint() {
  std::optional<TimePoint> limit;
  const auto may_wait = [&] {
    if (ctx_.stopping.is_requested && !limit) limit = ctx_.clock.now() + ctx_.config.timeouts.drain;
    return ctx_.clock.now() < limit.value_or(TimePoint::max());
  };
  int tries = 0;
  while (parts_.checkpointer.needs_checkpoint() && !ctx_.gate.is_deposed()) {
    const auto written = co_await parts_.checkpointer.write_checkpoint(false);
    if (written.ok()) co_return;
    if (!ctx_.gate.is_late(written.error()) || !may_wait() ||
        (ctx_.gate.holds().ok() && ++tries > kTries)) {
      tell(ctx_.events, log::Level::kError, "checkpoint.failed",
           {{"why", written.error()}, {"when", "at the end"}});
      co_return;
    }
    log::warn("checkpoint.stalled", {{"why", written.error()}, {"action", "it is tried again"}});
    (void)co_await ctx_.gate.pause();
    const auto is_over = [&] {  // asked with each look at the leases, too
      return ctx_.gate.holds().ok() || ctx_.gate.is_deposed() || !may_wait();
    };
    BlockedOn on{WaitCause::kCheckpoint, "the last checkpoint", "etcd",
                 [this] { return "the lease: " + ctx_.gate.leadership().trouble; }};
    (void)co_await ctx_.waits.until(is_over, std::move(on));
  }
}

}  // namespace centroid::server
