#include "server/service/control.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/service/waits.h"

/// The job's course as operators steer it, and what is short to tell.
namespace centroid::server {

namespace {

constexpr std::chrono::seconds kPatience{1};  ///< with the disk, before an act is answered

}  // namespace

Control::Control(JobServer& server)
    : JobPart(server.context()),
      server_(server),
      looks_(server.context().disk.executor),
      verifies_(server.context().disk.executor),
      shards_(server.parts().shards),
      rows_(server.parts().rows),
      table_servers_(server.parts().table_servers),
      coordinator_(server.parts().data.coordinator()) {}

Task<void> Control::save_for(std::shared_ptr<const Copy> kept,
                             std::shared_ptr<std::optional<Status>> outcome) {
  const Status saved = co_await commands_.save(kept->state, kept->revision);
  *outcome = saved;
  changed_.notify_all();
}

/// What is done takes effect at once. The answer says whether it is on the disk, too, for which it
/// waits a moment only: a disk that hangs keeps nobody from steering.
Task<Result<ActView>> Control::act_and_keep(Control* self, Result<Copy> (*act)(Control&)) {
  const Result<Copy> done = act(*self);
  if (!done.ok()) co_return done.error();
  ActView view;
  if (done->state == nullptr) co_return view;
  const auto kept = std::make_shared<const Copy>(*done);
  const auto outcome = std::make_shared<std::optional<Status>>();
  if (self->stopping_.is_closing)
    co_await self->save_for(kept, outcome);
  else
    self->tasks_.spawn(self->save_for(kept, outcome));
  const auto is_over = [outcome] { return outcome->has_value(); };
  BlockedOn on{WaitCause::kOperator, "a command of an operator", "disk",
               [] { return "its file in run_dir, so that it outlives this server"; }};
  (void)co_await self->until(is_over, std::move(on), self->clock_.now() + kPatience);
  if (*outcome && !(*outcome)->ok()) co_return (*outcome)->error();
  view.is_kept = outcome->has_value();
  co_return view;
}

Task<Result<ActView>> Control::pause() {
  const auto act = [](Control& self) -> Result<Copy> {
    CENTROID_TRY(self.gate_.check_lead());
    if (self.phase_.is(Phase::kFinished) || self.phase_.is(Phase::kHalted) ||
        self.stopping_.is_requested || self.commands_.stop)
      return Error(ErrorCode::kFailedPrecondition, "the job is over: " + self.phase_.reason());
    if (!self.commands_.pause)
      self.commands_.pause = OperatorState::Pause{self.clock_.unix_seconds()};
    self.changed_.notify_all();
    return self.commands_.copy();
  };
  co_return co_await run_on(executor_, act_and_keep(this, act));
}

Task<Result<ActView>> Control::resume() {
  const auto act = [](Control& self) -> Result<Copy> {
    CENTROID_TRY(self.gate_.check_lead());
    if (self.stopping_.is_requested)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server is stopping: " + self.stopping_.reason);
    const bool is_halted = self.commands_.stop && self.phase_.is(Phase::kHalted);
    if (self.commands_.stop && self.stopping_.rounds_ended && !is_halted)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server is ending: start it again with resume, then say it again");
    const bool is_stopped = is_halted || (self.commands_.stop && self.phase_.is(Phase::kStopped));
    if (!is_stopped && !self.commands_.pause)
      return Error(ErrorCode::kFailedPrecondition,
                   "the job is neither paused nor stopped nor halted: `centroidctl status` (GET "
                   "/v1/cluster) says what it does");
    if (is_stopped) self.commands_.stop.reset();
    self.commands_.pause.reset();
    log::info("job.resumed", {{"round", self.job_.round.value}});
    self.changed_.notify_all();
    return self.commands_.copy();
  };
  auto outcome = co_await run_on(executor_, act_and_keep(this, act));
  // A job that halted in this process has no more rounds here: the next process goes on.
  auto end = [this]() -> Status {
    if (phase_.is(Phase::kHalted) && stopping_.rounds_ended && !commands_.stop)
      server_.request_stop(
          "POST /v1/job:resume of a halted job: started again, the server goes on");
    return {};
  };
  if (outcome.ok()) (void)co_await run_on(executor_, std::move(end));
  co_return outcome;
}

/// The server does not end before the stop is on disk, so a restart finds it.
Task<Result<ActView>> Control::stop() {
  const auto act = [](Control& self) -> Result<Copy> {
    CENTROID_TRY(self.gate_.check_lead());
    const bool is_over = self.phase_.is(Phase::kFinished) || self.phase_.is(Phase::kHalted);
    Copy kept;
    if (!is_over && !self.commands_.stop) {
      OperatorState::Stop stop;
      stop.run_id = self.job_.run_id;
      stop.version = self.job_.checkpointed.value;
      stop.since_unix_seconds = self.clock_.unix_seconds();
      self.commands_.stop = std::move(stop);
      self.commands_.pause.reset();  // whoever lets it go on means both
      kept = self.commands_.copy();
    } else if (self.commands_.stop && !self.commands_.is_saved()) {
      kept = self.commands_.copy();  // said again, for the disk did not take it
    }
    self.server_.request_stop("POST /v1/job:stop");
    return kept;
  };
  co_return co_await run_on(executor_, act_and_keep(this, act));
}

Task<Result<RestoreView>> Control::restore_checkpoint(std::uint64_t version, bool delete_newer) {
  auto ask = [](Control* self, Version wanted, bool deletes) -> Task<Result<RestoreView>> {
    const auto refuse = [](const std::string& why) {
      return Error(ErrorCode::kFailedPrecondition, "restore: " + why);
    };
    if (self->gate_.is_beginning()) co_return self->gate_.check_lead().error();
    if (self->phase_.is(Phase::kStandby))
      co_return refuse("this server is a " + self->gate_.leadership().to_string() +
                       ": ask the leader");
    if (self->stopping_.rounds_ended || self->stopping_.is_requested || self->commands_.stop)
      co_return refuse("the job is over: " + self->phase_.reason());
    const bool has_others =
        self->config_.servers > 1 || self->spread_.has_others() || !self->shards_.present().empty();
    if (self->config_.writes_journal() && has_others)
      co_return refuse(
          "each of the servers has rounds behind the checkpoint in its journal: stop them, move "
          "the journals and the newer checkpoints away, and start them with `resume`");
    if (self->restore_) co_return refuse("another one is under way");
    const auto mine = std::make_shared<RestoreWanted>();
    mine->version = wanted;
    mine->deletes_newer = deletes;
    self->restore_ = mine;
    self->changed_.notify_all();
    const auto what = [self, mine] {
      return mine->is_begun ? mine->doing : "the end of " + present_round(self->job_);
    };
    const auto is_over = [self, mine] { return mine->outcome || self->stopping_.rounds_ended; };
    BlockedOn on{WaitCause::kOperator, "restore", "round loop", what};
    const bool goes_on = co_await self->until(is_over, std::move(on));
    if (!goes_on) {
      mine->is_abandoned = true;
      if (mine->is_begun)
        co_return Error(ErrorCode::kCancelled,
                        "the call was cancelled; the job goes back to the checkpoint all the same");
      if (self->restore_ == mine) self->restore_.reset();
      co_return Error(ErrorCode::kCancelled, "the call was cancelled");
    }
    if (self->restore_ == mine) self->restore_.reset();
    if (!mine->outcome) co_return refuse("the job ended first");
    co_return *mine->outcome;
  };
  co_return co_await run_on(executor_, ask(this, Version(version), delete_newer));
}

Task<std::vector<std::string>> Control::share_tokens() {
  auto all = [](Control* self) -> Task<std::vector<std::string>> {
    std::vector<std::string> unaware;
    if (!self->server_.parts().servers.tokens()) co_return unaware;
    TaskGroup group(self->executor_);
    for (const auto& [name, server] : self->shards_.present())
      group.spawn(self->server_.parts().servers.send_tokens(server));
    co_await group.join();
    for (const auto& [name, server] : self->shards_.present())
      if (!server->has_tokens) unaware.push_back(name);
    co_return unaware;
  };
  co_return co_await run_on(executor_, all(this));
}

namespace {

EpochView view_of_epoch(const EpochTally& tally, std::uint64_t samples, double now) {
  EpochView view;
  const bool is_over = tally.ended_unix_seconds > 0;
  view.epoch = tally.epoch;
  view.samples = tally.all.samples;
  view.trained =
      samples > 0 ? static_cast<double>(tally.trained) / static_cast<double>(samples) : 0;
  view.state = is_over ? "ended" : "open";
  view.start_unix_seconds = tally.start_unix_seconds;
  view.seconds = (is_over ? tally.ended_unix_seconds : now) - tally.start_unix_seconds;
  view.loss = tally.all.loss();
  view.accuracy = tally.all.accuracy();
  view.scalars = tally.all.scalars;
  for (const auto& [name, member] : tally.members) {
    EpochWorkerView one;
    one.name = name;
    one.devices = member.devices;
    one.contributions = member.contributions;
    one.samples = member.tally.samples;
    one.loss = member.tally.loss();
    one.accuracy = member.tally.accuracy();
    one.compute_seconds = member.compute_seconds;
    one.samples_per_second = member.samples_per_second();
    one.share = tally.share_of(member);
    one.scalars = member.tally.scalars;
    view.workers.push_back(std::move(one));
  }
  return view;
}

}  // namespace

Task<std::vector<EpochView>> Control::epochs(std::size_t limit, std::optional<EpochPlace> before) {
  auto read = [this, limit, before] {
    std::vector<EpochView> views;
    const std::uint64_t samples = job_.agreed ? job_.agreed->train_samples : 0;
    const auto add = [&](const EpochTally& tally) {
      if (views.size() < limit && (!before || EpochPlace(tally.epoch, 0) < *before))
        views.push_back(view_of_epoch(tally, samples, clock_.unix_seconds()));
    };
    for (auto at = job_.epochs.open().rbegin(); at != job_.epochs.open().rend(); ++at)
      add(at->second);
    // Those that a job which has gone back trains again are open.
    const std::uint64_t limit_of =
        job_.epochs.has_open() ? job_.epochs.open().begin()->first : UINT64_MAX;
    for (const EpochTally& tally : job_.epochs.ended())
      if (tally.epoch < limit_of) add(tally);
    return views;
  };
  co_return co_await run_on(executor_, std::move(read));
}

Task<std::vector<WaitView>> Control::waits() {
  auto read = [this] { return server_.parts().wait_report.present_waits(); };
  co_return co_await run_on(executor_, std::move(read));
}

}  // namespace centroid::server
