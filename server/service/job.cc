#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/log.h"
#include "server/service/cluster.h"

/// The job's course as operators steer it: pause, resume, and a stop or halt that holds when
/// something starts the server again or another server takes over.
namespace centroid::server {

/// Whatever starts the server again, or another server that takes over, does not undo a halt by
/// that. Where the server ends with it (exit status 3), who starts it again means to go on.
bool Cluster::keeps_halts() const { return !config_.exit_when_finished || gate_.has_election(); }

Task<void> Cluster::keep_halt(const Error& why) {
  if (!keeps_halts()) co_return;
  OperatorState::Stop halt;
  halt.run_id = job_.run_id;
  halt.version = job_.checkpointed.value;
  halt.since_unix_seconds = clock_.unix_seconds();
  halt.halted = why.message();
  commands_.stop = std::move(halt);
  co_await commands_.save_now();
}

/// Of a server that begins: the stop holds for the job that it was said to, not for another one in
/// the same folder, nor for one that was at its goal.
Task<void> Cluster::heed_stop() {
  if (!commands_.stop) co_return;
  const bool has_model = job_.store && job_.store->version().value > 0;
  const bool is_other_run =
      has_model ? job_.run_id != commands_.stop->run_id
                : !config_.run_id.empty() && config_.run_id != commands_.stop->run_id;
  const bool is_gone = commands_.stop->version > 0 && !has_model && !replay_;
  const bool is_meant = !commands_.stop->halted.empty() && !keeps_halts();
  if (config_.resume && !is_other_run && !is_gone && !data_.goal_reached() && !is_meant) {
    if (!has_model)
      job_.run_id = commands_.stop->run_id;  // by which workers that were away look for it
    co_return;
  }
  log::info("job.stop_forgotten",
            {{"run_id", commands_.stop->run_id},
             {"since", utc(commands_.stop->since_unix_seconds)},
             {"why", data_.goal_reached() ? "the job is at its goal"
                     : is_meant ? "exit_when_finished: who starts this server means to go on"
                                : "this is another job"}});
  commands_.stop.reset();
  co_await commands_.save_now();
}

/// A stop or halt of an earlier life of this server, or of the leader before: workers that come are
/// told so, until it is taken back. Where the server is to leave at its end, only for
/// `drain_timeout`, in which workers that were away come back.
Task<void> Cluster::stay_stopped() {
  const std::string since = utc(commands_.stop->since_unix_seconds);
  const std::string halted = commands_.stop->halted;
  const std::string what =
      (halted.empty() ? "stopped by an operator at " : "halted itself at ") + since;
  phase_.set(halted.empty() ? Phase::kStopped : Phase::kHalted,
             what + ": `centroidctl job resume` (POST /v1/job:resume) goes on" +
                 (halted.empty() ? "" : ". The cause: " + halted));
  const std::string action = "workers are told to stop; centroidctl job resume goes on";
  const std::uint64_t version = job_.store ? job_.store->version().value : 0;
  if (halted.empty())
    log::warn("job.stopped", {{"since", since}, {"version", version}, {"action", action}});
  else
    log::error("job.halted", {{"since", since}, {"error", halted}, {"action", action}});
  proto::Finish finish;
  finish.reason = halted.empty() ? proto::FinishReason::kStopped : proto::FinishReason::kHalted;
  finish.version = job_.store ? job_.store->version() : Version();
  finish.text = "the job " + std::string(halted.empty() ? "was " : "") + what;
  if (!halted.empty()) finish.text += ": " + halted;
  epilogue_ = finish;
  const TimePoint begin = clock_.now();
  while (commands_.stop && !stopping_.is_requested && !gate_.is_deposed()) {
    const TimePoint limit =
        config_.exit_when_finished ? begin + config_.drain_timeout : TimePoint::max();
    if (clock_.now() >= limit) co_return;
    co_await changed_.wait(limit);
  }
  if (commands_.stop) co_return;
  epilogue_.reset();
  const auto was_told = [](const auto& one) { return one.second->finish.has_value(); };
  const TimePoint limit = clock_.now() + config_.drain_timeout;
  while (std::ranges::any_of(members_.links, was_told) && clock_.now() < limit)
    co_await changed_.wait(limit);
  for (const auto& one : members_.links)
    if (was_told(one))
      one.second->session->close(Error(ErrorCode::kAborted, "the job goes on: join again"));
}

}  // namespace centroid::server
