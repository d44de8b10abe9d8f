#include <algorithm>
#include <ctime>

#include "common/base/log.h"
#include "server/service/cluster.h"

/// The job's course as operators steer it: pause, resume, and a stop that holds when something
/// starts the server again or another server takes over.
namespace centroid::server {

namespace {

std::string utc(double unix_seconds) {
  const auto when = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&when, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, size);
}

}  // namespace

Task<Status> Cluster::pause() {
  auto act = [this]() -> Status {
    if (phase_ == Phase::kFinished || phase_ == Phase::kHalted || stop_requested_ || stop_)
      return Error(ErrorCode::kFailedPrecondition, "the job is over: " + phase_reason_);
    paused_ = true;
    changed_.notify_all();
    return {};
  };
  co_return co_await run_on(executor_, std::move(act));
}

Task<Status> Cluster::resume() {
  auto act = [this]() -> std::optional<Result<Kept>> {
    if (stop_requested_)
      return Error(ErrorCode::kFailedPrecondition, "the server is stopping: " + stop_reason_);
    if (stop_ && rounds_ended_)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server is ending: start it again with resume, then say it again");
    if (stop_ && phase_ == Phase::kStopped) {
      stop_.reset();
      log::info("job.resumed", {{"round", round_.value}});
      changed_.notify_all();
      return keep();
    }
    if (!paused_) return Error(ErrorCode::kFailedPrecondition, "the job is not paused");
    paused_ = false;
    changed_.notify_all();
    return Kept();
  };
  auto outcome = co_await run_on(executor_, std::move(act));
  if (!outcome->ok()) co_return outcome->error();
  const Kept kept = std::move(**outcome);
  if (kept.state == nullptr) co_return Status();
  co_return co_await save(kept.state, kept.revision);
}

/// On the disk first: who starts the server again finds it there, however this one ends.
Task<Status> Cluster::stop() {
  auto note = [this]() -> std::optional<Result<Kept>> {
    CENTROID_TRY(check_lead());
    if (phase_ == Phase::kFinished || phase_ == Phase::kHalted || stop_) return Kept();
    OperatorState::Stop stop;
    stop.run_id = run_id_;
    stop.version = checkpointed_.value;
    stop.since_unix_seconds = clock_.unix_seconds();
    stop_ = std::move(stop);
    return keep();
  };
  auto noted = co_await run_on(executor_, std::move(note));
  if (!noted->ok()) co_return noted->error();
  const Kept kept = std::move(**noted);
  Status saved;
  if (kept.state != nullptr) saved = co_await save(kept.state, kept.revision);
  auto act = [this]() -> Status {
    request_stop("POST /v1/job:stop");
    return {};
  };
  CENTROID_CO_TRY(co_await run_on(executor_, std::move(act)));
  co_return saved;
}

/// Of a server that begins: the stop holds for the job that it was said to, not for another one in
/// the same folder, nor for one that was at its goal.
Task<void> Cluster::heed_stop() {
  if (!stop_) co_return;
  const bool has_model = store_ && store_->version().value > 0;
  const bool is_other_run = has_model ? run_id_ != stop_->run_id
                                      : !config_.run_id.empty() && config_.run_id != stop_->run_id;
  const bool is_gone = stop_->version > 0 && !has_model && !replay_;
  if (config_.resume && !is_other_run && !is_gone && !goal_reached()) {
    if (!has_model) run_id_ = stop_->run_id;  // by which workers that were away look for it
    co_return;
  }
  log::info("job.stop_forgotten",
            {{"run_id", stop_->run_id},
             {"since", utc(stop_->since_unix_seconds)},
             {"why", goal_reached() ? "the job is at its goal" : "this is another job"}});
  stop_.reset();
  const Kept kept = keep();
  (void)co_await save(kept.state, kept.revision);
}

/// A stop of an earlier life of this server, or of the leader before: workers that come are told
/// so, until it is taken back. Where the server is to leave at its end, only for `drain_timeout`,
/// in which workers that were away come back.
Task<void> Cluster::stay_stopped() {
  const std::string since = utc(stop_->since_unix_seconds);
  set_phase(Phase::kStopped, "stopped by an operator at " + since +
                                 ": POST /v1/job:resume (centroidctl job resume) goes on");
  log::warn("job.stopped",
            {{"since", since},
             {"version", store_ ? store_->version().value : 0},
             {"action", "workers are told to stop; centroidctl job resume goes on"}});
  proto::Finish finish;
  finish.reason = proto::FinishReason::kStopped;
  finish.version = store_ ? store_->version() : Version();
  finish.text = "the job was stopped by an operator at " + since;
  epilogue_ = finish;
  const TimePoint begin = clock_.now();
  while (stop_ && !stop_requested_ && !is_deposed()) {
    const TimePoint limit =
        config_.exit_when_finished ? begin + config_.drain_timeout : TimePoint::max();
    if (clock_.now() >= limit) co_return;
    co_await changed_.wait(limit);
  }
  if (stop_) co_return;
  epilogue_.reset();
  const auto was_told = [](const auto& one) { return one.second->finish.has_value(); };
  const TimePoint limit = clock_.now() + config_.drain_timeout;
  while (std::ranges::any_of(links_, was_told) && clock_.now() < limit)
    co_await changed_.wait(limit);
  for (const auto& one : links_)
    if (was_told(one))
      one.second->session->close(Error(ErrorCode::kAborted, "the job goes on: join again"));
}

}  // namespace centroid::server
