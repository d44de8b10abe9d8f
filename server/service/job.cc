#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/log.h"
#include "server/service/cluster.h"

/// The job's course as operators steer it: pause, resume, and a stop or halt that holds when
/// something starts the server again or another server takes over.
namespace centroid::server {

namespace {

constexpr std::chrono::seconds kPatience{1};  ///< with the disk, before an act is answered
constexpr std::chrono::milliseconds kLook{2};

std::string utc(double unix_seconds) {
  const auto when = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&when, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, size);
}

}  // namespace

Task<void> Cluster::save_for(std::shared_ptr<const Kept> kept,
                             std::shared_ptr<std::optional<Status>> outcome) {
  const Status saved = co_await save(kept->state, kept->revision);
  *outcome = saved;
}

/// What is done takes effect at once. The answer says whether it is on the disk, too, for which it
/// waits a moment only: a disk that hangs keeps nobody from steering.
Task<Optional<Result<ActView>>> Cluster::act_and_keep(Cluster* self,
                                                      Result<Kept> (*act)(Cluster&)) {
  const Result<Kept> done = act(*self);
  if (!done.ok()) co_return done.error();
  ActView view;
  if (done->state == nullptr) co_return view;
  const auto kept = std::make_shared<const Kept>(*done);
  const auto outcome = std::make_shared<std::optional<Status>>();
  if (self->closing_)
    co_await self->save_for(kept, outcome);
  else
    self->tasks_.spawn(self->save_for(kept, outcome));
  const TimePoint limit = self->clock_.now() + kPatience;
  bool goes_on = true;
  while (!*outcome && goes_on && self->clock_.now() < limit)
    goes_on = co_await sleep_until(self->clock_.now() + kLook);
  if (*outcome && !(*outcome)->ok()) co_return (*outcome)->error();
  view.is_kept = outcome->has_value();
  co_return view;
}

std::string Cluster::pause_reason() const {
  return "paused by an operator at " + utc(pause_->since_unix_seconds) +
         ": `centroidctl job resume` (POST /v1/job:resume) goes on";
}

Task<Result<ActView>> Cluster::pause() {
  const auto act = [](Cluster& self) -> Result<Kept> {
    CENTROID_TRY(self.check_lead());
    if (self.phase_ == Phase::kFinished || self.phase_ == Phase::kHalted || self.stop_requested_ ||
        self.stop_)
      return Error(ErrorCode::kFailedPrecondition, "the job is over: " + self.phase_reason_);
    if (!self.pause_) self.pause_.emplace().since_unix_seconds = self.clock_.unix_seconds();
    self.changed_.notify_all();
    return self.keep();
  };
  auto outcome = co_await boost::asio::co_spawn(executor_, act_and_keep(this, act),
                                                boost::asio::use_awaitable);
  co_return std::move(*outcome);
}

Task<Result<ActView>> Cluster::resume() {
  const auto act = [](Cluster& self) -> Result<Kept> {
    CENTROID_TRY(self.check_lead());
    if (self.stop_requested_)
      return Error(ErrorCode::kFailedPrecondition, "the server is stopping: " + self.stop_reason_);
    const bool is_halted = self.stop_ && self.phase_ == Phase::kHalted;
    if (self.stop_ && self.rounds_ended_ && !is_halted)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server is ending: start it again with resume, then say it again");
    const bool is_stopped = is_halted || (self.stop_ && self.phase_ == Phase::kStopped);
    if (!is_stopped && !self.pause_)
      return Error(ErrorCode::kFailedPrecondition,
                   "the job is neither paused nor stopped nor halted: `centroidctl status` (GET "
                   "/v1/cluster) says what it does");
    if (is_stopped) self.stop_.reset();
    self.pause_.reset();
    log::info("job.resumed", {{"round", self.job_.round.value}});
    self.changed_.notify_all();
    return self.keep();
  };
  auto outcome = co_await boost::asio::co_spawn(executor_, act_and_keep(this, act),
                                                boost::asio::use_awaitable);
  // Of a job that halted in this life of the server the rounds have ended: the next life goes on.
  auto end = [this]() -> Status {
    if (phase_ == Phase::kHalted && rounds_ended_ && !stop_)
      request_stop("POST /v1/job:resume of a halted job: started again, the server goes on");
    return {};
  };
  if (outcome->ok()) (void)co_await run_on(executor_, std::move(end));
  co_return std::move(*outcome);
}

/// Whatever starts the server again, or another server that takes over, does not undo a halt by
/// that. Where the server ends with it (exit status 3), who starts it again means to go on.
bool Cluster::keeps_halts() const { return !config_.exit_when_finished || fence_ != nullptr; }

Task<void> Cluster::keep_halt(const Error& why) {
  if (!keeps_halts()) co_return;
  OperatorState::Stop halt;
  halt.run_id = job_.run_id;
  halt.version = job_.checkpointed.value;
  halt.since_unix_seconds = clock_.unix_seconds();
  halt.halted = why.message();
  stop_ = std::move(halt);
  const Kept kept = keep();
  (void)co_await save(kept.state, kept.revision);
}

/// Whoever starts the server again finds it on the disk, however this one ends: its end waits until
/// it is there.
Task<Result<ActView>> Cluster::stop() {
  const auto act = [](Cluster& self) -> Result<Kept> {
    CENTROID_TRY(self.check_lead());
    const bool is_over = self.phase_ == Phase::kFinished || self.phase_ == Phase::kHalted;
    Kept kept;
    if (!is_over && !self.stop_) {
      OperatorState::Stop& stop = self.stop_.emplace();
      stop.run_id = self.job_.run_id;
      stop.version = self.job_.checkpointed.value;
      stop.since_unix_seconds = self.clock_.unix_seconds();
      self.pause_.reset();  // whoever lets it go on means both
      kept = self.keep();
    } else if (self.stop_ && self.operator_kept_ < self.operator_revision_) {
      kept = self.keep();  // said again, for the disk did not take it
    }
    self.request_stop("POST /v1/job:stop");
    return kept;
  };
  auto outcome = co_await boost::asio::co_spawn(executor_, act_and_keep(this, act),
                                                boost::asio::use_awaitable);
  co_return std::move(*outcome);
}

/// Of a server that begins: the stop holds for the job that it was said to, not for another one in
/// the same folder, nor for one that was at its goal.
Task<void> Cluster::heed_stop() {
  if (!stop_) co_return;
  const bool has_model = job_.store && job_.store->version().value > 0;
  const bool is_other_run = has_model ? job_.run_id != stop_->run_id
                                      : !config_.run_id.empty() && config_.run_id != stop_->run_id;
  const bool is_gone = stop_->version > 0 && !has_model && !replay_;
  const bool is_meant = !stop_->halted.empty() && !keeps_halts();
  if (config_.resume && !is_other_run && !is_gone && !goal_reached() && !is_meant) {
    if (!has_model) job_.run_id = stop_->run_id;  // by which workers that were away look for it
    co_return;
  }
  log::info("job.stop_forgotten",
            {{"run_id", stop_->run_id},
             {"since", utc(stop_->since_unix_seconds)},
             {"why", goal_reached() ? "the job is at its goal"
                     : is_meant     ? "exit_when_finished: who starts this server means to go on"
                                    : "this is another job"}});
  stop_.reset();
  const Kept kept = keep();
  (void)co_await save(kept.state, kept.revision);
}

/// A stop or halt of an earlier life of this server, or of the leader before: workers that come are
/// told so, until it is taken back. Where the server is to leave at its end, only for
/// `drain_timeout`, in which workers that were away come back.
Task<void> Cluster::stay_stopped() {
  const std::string since = utc(stop_->since_unix_seconds);
  const std::string halted = stop_->halted;
  const std::string what =
      (halted.empty() ? "stopped by an operator at " : "halted itself at ") + since;
  set_phase(halted.empty() ? Phase::kStopped : Phase::kHalted,
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
