#include "server/service/job_stop.h"

#include <algorithm>

#include "common/base/log.h"

namespace centroid::server {

void JobStop::request_stop(const std::string& why, bool leaves_workers) {
  if (!ctx_.stopping.is_requested) ctx_.stopping.leaves_workers = leaves_workers;
  if (!ctx_.stopping.is_requested) log::info("server.stop_requested", {{"why", why}});
  ctx_.stopping.is_requested = true;
  ctx_.stopping.reason = why;
  ctx_.journal.give_up();
  rows_.journal().give_up();
  (void)ctx_.disk.hurried();
  ctx_.changed.notify_all();
}

/// Whatever starts the server again, or another server that takes over, does not undo a halt by
/// that. Where the server ends with it (exit status 3), who starts it again means to go on.
bool JobStop::keeps_halts() const {
  return !ctx_.config.leaving.when_finished || ctx_.gate.has_election();
}

Task<void> JobStop::keep_halt(const Error& why) {
  if (!keeps_halts()) co_return;
  OperatorState::Stop halt;
  halt.run_id = ctx_.job.run_id;
  halt.version = ctx_.job.checkpointed.value;
  halt.since_unix_seconds = ctx_.clock.unix_seconds();
  halt.halted = why.message();
  ctx_.commands.stop = std::move(halt);
  co_await ctx_.commands.save_now();
}

/// Of a server that begins: the stop holds for the job that it was said to, not for another one in
/// the same folder, nor for one that was at its goal.
Task<void> JobStop::honour_stop() {
  if (!ctx_.commands.stop) co_return;
  const bool has_model = ctx_.job.shard && ctx_.job.store().version().value > 0;
  const bool is_other_run =
      has_model ? ctx_.job.run_id != ctx_.commands.stop->run_id
                : !ctx_.config.run_id.empty() && ctx_.config.run_id != ctx_.commands.stop->run_id;
  const bool is_gone = ctx_.commands.stop->version > 0 && !has_model && !ctx_.replay;
  const bool is_meant = !ctx_.commands.stop->halted.empty() && !keeps_halts();
  if (ctx_.config.resume && !is_other_run && !is_gone && !data_.goal_reached() && !is_meant) {
    if (!has_model)
      ctx_.job.run_id = ctx_.commands.stop->run_id;  // by which workers that were away look for it
    co_return;
  }
  log::info("job.stop_discarded",
            {{"run_id", ctx_.commands.stop->run_id},
             {"since", utc(ctx_.commands.stop->since_unix_seconds)},
             {"why", data_.goal_reached() ? "the job is at its goal"
                     : is_meant ? "exit_when_finished: who starts this server means to go on"
                                : "this is another job"}});
  ctx_.commands.stop.reset();
  co_await ctx_.commands.save_now();
}

/// A stop or halt of an earlier life of this server, or of the leader before: workers that come are
/// told so, until it is taken back. Where the server is to leave at its end, only for
/// `drain_timeout`, in which workers that were away come back.
Task<void> JobStop::stay_stopped() {
  const std::string since = utc(ctx_.commands.stop->since_unix_seconds);
  const std::string halted = ctx_.commands.stop->halted;
  const std::string what =
      (halted.empty() ? "stopped by an operator at " : "halted itself at ") + since;
  ctx_.phase.set(halted.empty() ? Phase::kStopped : Phase::kHalted,
                 what + ": `centroidctl job resume` (POST /v1/job:resume) goes on" +
                     (halted.empty() ? "" : ". The cause: " + halted));
  const std::string action = "workers are told to stop; centroidctl job resume goes on";
  const std::uint64_t version = ctx_.job.shard ? ctx_.job.store().version().value : 0;
  if (halted.empty())
    log::warn("job.stopped", {{"since", since}, {"version", version}, {"action", action}});
  else
    log::error("job.halted", {{"since", since}, {"error", halted}, {"action", action}});
  proto::Finish finish;
  finish.reason = halted.empty() ? proto::FinishReason::kStopped : proto::FinishReason::kHalted;
  finish.version = ctx_.job.shard ? ctx_.job.store().version() : Version();
  finish.text = "the job " + std::string(halted.empty() ? "was " : "") + what;
  if (!halted.empty()) finish.text += ": " + halted;
  ctx_.epilogue = finish;
  const auto is_over = [this] {
    return !ctx_.commands.stop || ctx_.stopping.is_requested || ctx_.gate.is_deposed();
  };
  const TimePoint limit = ctx_.config.leaving.when_finished
                              ? ctx_.clock.now() + ctx_.config.timeouts.drain
                              : TimePoint::max();
  (void)co_await ctx_.waits.until(is_over, kShownElsewhere, limit);
  if (ctx_.commands.stop) co_return;
  ctx_.epilogue.reset();
  const auto was_told = [](const auto& one) { return one.second->finish.has_value(); };
  const auto are_gone = [this, was_told] {
    return std::ranges::none_of(ctx_.members.present, was_told);
  };
  BlockedOn on{WaitCause::kWorkers, "job", "workers",
               [] { return "the leave of those that were told to stop: they join again"; }};
  (void)co_await ctx_.waits.until(are_gone, std::move(on),
                                  ctx_.clock.now() + ctx_.config.timeouts.drain);
  for (const auto& one : ctx_.members.present)
    if (was_told(one))
      one.second->session->close(Error(ErrorCode::kAborted, "the job goes on: join again"));
}

}  // namespace centroid::server
