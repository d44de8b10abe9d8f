#include "server/service/operator_commands.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/log.h"
#include "common/base/refusal.h"

namespace centroid::server {

std::string utc(double unix_seconds) {
  const auto when = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&when, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, size);
}

std::string OperatorCommands::pause_reason() const {
  return "paused by an operator at " + utc(pause->since_unix_seconds) +
         ": `centroidctl job resume` (POST /v1/job:resume) goes on";
}

const std::map<std::string, Eviction>& OperatorCommands::evicted() {
  std::erase_if(evicted_, [this](const auto& one) {
    return one.second.until && *one.second.until <= clock_.now();
  });
  return evicted_;
}

Status OperatorCommands::check_evicted(const std::string& name) {
  (void)evicted();
  const auto found = evicted_.find(name);
  if (found == evicted_.end()) return {};
  const std::string refusal =
      "worker '" + name + "' was evicted by an operator (" + found->second.why;
  if (!found->second.until)
    return Error(ErrorCode::kFailedPrecondition,
                 refusal + ") until it is allowed: `centroidctl workers allow " + name +
                     "` (DELETE /v1/evictions/" + name + ")");
  const auto left =
      std::chrono::duration_cast<std::chrono::seconds>(*found->second.until - clock_.now());
  return not_ready(refusal + ") for another " + std::to_string(left.count() + 1) + " s");
}

/// Pause and settings hold for the job that they were said to: not for another one in the same
/// folder, nor for one that begins anew because the checkpoints were moved away.
bool OperatorCommands::is_of_this_job(const OperatorState::Job& job,
                                      const std::vector<CheckpointEntry>& found) const {
  if (!config_.resume) return false;
  if (found.empty() && job.version > 0) return false;
  std::string run = config_.run_id;
  if (run.empty() && !found.empty()) run = found.front().info.run_id;
  return run.empty() || run == job.run_id;
}

/// What was changed while the job ran holds on, unless it has been configured otherwise since.
bool OperatorCommands::take_settings(const std::vector<OperatorState::Setting>& settings) {
  if (schema_ == nullptr) return false;
  std::vector<OperatorState::Setting> wanted;
  for (const OperatorState::Setting& one : settings) {
    const std::string now = schema_->configured(one.name);
    if (now == one.instead_of) {
      wanted.push_back(one);
      continue;
    }
    const std::string why = now.empty()        ? "there is no such setting that can be changed live"
                            : now == one.value ? "it is configured so"
                                               : "it has been configured as " + now + " since";
    log::write(now == one.value ? log::Level::kInfo : log::Level::kWarn, "config.change_discarded",
               {{"setting", one.name}, {"value", one.value}, {"why", why}});
  }
  const auto check = [this](const std::vector<config::Schema::Change>&) {
    ServerConfig trial = config_;
    return finish(trial);
  };
  const auto take = [&](std::span<const OperatorState::Setting> some) -> Status {
    std::string text;
    for (const OperatorState::Setting& one : some)  // names and values of our own making
      text.append(text.empty() ? "{\"" : ", \"").append(one.name).append("\": ").append(one.value);
    CENTROID_ASSIGN(
        const auto changes,
        schema_->change(text + "}", "PATCH /v1/config, " + std::string(kOperatorFile), check));
    for (const auto& one : changes)
      log::info("config.restored",
                {{"setting", one.name}, {"value", one.to}, {"configured", one.from}});
    return {};
  };
  if (wanted.empty()) return false;
  if (const Status all = take(wanted); !all.ok()) {  // they may not go with what is configured now
    for (const OperatorState::Setting& one : wanted)
      if (const Status taken = take(std::span(&one, 1)); !taken.ok())
        log::error("config.change_refused", {{"setting", one.name}, {"why", taken.error()}});
  }
  return true;
}

/// What was said to an earlier life of this server, or to the leader before.
Task<Result<bool>> OperatorCommands::load(const CheckpointDirectory& checkpoints) {
  struct Files {
    Result<OperatorState> state;
    Result<std::vector<CheckpointEntry>> checkpoints;
  };
  auto read = [folder = config_.checkpoint.dir, &checkpoints] {
    return std::make_shared<Files>(read_operator_state(folder), checkpoints.entries(false));
  };
  const std::shared_ptr<Files> files = co_await run_on(files_, std::move(read));
  if (!files->state.ok()) co_return files->state.error();
  if (!files->checkpoints.ok()) co_return files->checkpoints.error();
  const OperatorState& state = files->state.value();
  const double now = clock_.unix_seconds();
  evicted_.clear();
  for (const OperatorState::Eviction& one : state.evictions) {
    Eviction eviction;
    eviction.why = one.why;
    eviction.since_unix_seconds = one.since_unix_seconds;
    eviction.until_unix_seconds = one.until_unix_seconds;
    if (one.until_unix_seconds > 0) {
      const std::chrono::duration<double> left(one.until_unix_seconds - now);
      if (left.count() <= 0) continue;
      eviction.until = clock_.now() + std::chrono::duration_cast<Duration>(left);
    }
    evicted_[one.name] = std::move(eviction);
  }
  scale_hint = state.scale;
  stop = state.stop;
  pause.reset();
  bool has_settings = false;
  if (state.has_job() && is_of_this_job(state.job, *files->checkpoints)) {
    pause = state.pause;
    has_settings = take_settings(state.settings);
  } else if (state.has_job()) {
    log::info("operator.discarded",
              {{"run_id", state.job.run_id}, {"why", "pause and settings were of another job"}});
  }
  if (!evicted_.empty())
    log::info("evictions.restored",
              {{"workers", evicted_.size()}, {"first", evicted_.begin()->first}});
  co_return has_settings;
}

OperatorState OperatorCommands::state() const {
  OperatorState state;
  for (const auto& [name, eviction] : evicted_)
    state.evictions.push_back({.name = name,
                               .why = eviction.why,
                               .since_unix_seconds = eviction.since_unix_seconds,
                               .until_unix_seconds = eviction.until_unix_seconds});
  state.scale = scale_hint;
  state.stop = stop;
  state.pause = pause;
  if (schema_ != nullptr)
    for (config::Schema::Live& one : schema_->live_changes())
      state.settings.push_back({.name = std::move(one.name),
                                .value = std::move(one.value),
                                .instead_of = std::move(one.configured)});
  if (state.has_job()) state.job = {.run_id = job_.run_id, .version = job_.checkpointed.value};
  return state;
}

/// A later revision may be on the disk already.
Task<Status> OperatorCommands::save(std::shared_ptr<const OperatorState> state,
                                    std::uint64_t revision) {
  auto write = [this, state, revision]() -> Status {
    if (revision <= written_) return {};
    const std::function<Status()> may = gate_.may_write();
    if (may) CENTROID_TRY(may());  // a leader that was deposed begins nothing
    CENTROID_TRY(write_operator_state(config_.checkpoint.dir, *state, may, gate_.writer()));
    written_ = revision;
    return {};
  };
  const Status written = co_await run_on(files_, std::move(write));
  auto note = [this, is_kept = written.ok(), revision] {
    if (is_kept) saved_ = std::max(saved_, revision);
  };
  co_await run_on(executor_, std::move(note));
  if (!written.ok()) {
    log::error("operator.save_failed", {{"error", written.error()}});
    co_return Error(ErrorCode::kUnavailable,
                    "done, but not kept on the disk, so a restart forgets "
                    "it: " +
                        written.error().message());
  }
  co_return Status();
}

/// A failure is in the log.
Task<void> OperatorCommands::save_now() {
  const Copy now = copy();
  (void)co_await save(now.state, now.revision);
}

}  // namespace centroid::server
