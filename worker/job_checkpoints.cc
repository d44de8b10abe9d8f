#include "worker/job_checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/random.h"
#include "common/checkpoint/inspect.h"
#include "worker/node/sharded_replica.h"
#include "worker/parallel/agreement.h"

namespace centroid::worker {

namespace {

std::string random_name() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random_seed()));
  return text;
}

/// Whether there is a checkpoint, sound or not.
Result<bool> is_used(const std::string& path, bool resume) {
  CENTROID_ASSIGN(const CheckpointDirectory folder, CheckpointDirectory::view(path));
  CENTROID_ASSIGN(const auto entries, folder.entries(false));
  const bool is_empty = entries.empty();
  if (is_empty || resume) return !is_empty;
  return Error(ErrorCode::kFailedPrecondition,
               path +
                   " has checkpoints: go on from them with --resume, or choose another "
                   "--checkpoint.dir");
}

void log_failure(const Status& status, std::uint64_t step) {
  // That of this step is there if a rank was lost after it.
  if (status.ok() || status.error().code() == ErrorCode::kAlreadyExists) return;
  log::error("checkpoint.failed",
             {{"error", status.error()}, {"when", "step " + std::to_string(step)}});
}

}  // namespace

Result<std::unique_ptr<JobCheckpoints>> JobCheckpoints::open(
    const WorkerConfig& config, const Model& model, const DataSplit& data,
    const collective::Group& group, const std::string& run,
    const std::optional<parallel::CheckpointStage>& stage) {
  std::unique_ptr<JobCheckpoints> made(
      new JobCheckpoints(config, model, data.train.samples, group));
  parallel::ShardedCheckpointOptions options;
  options.folder = config.checkpoint.dir;
  options.keep = config.checkpoint.keep;
  options.stage = stage;
  options.check = [job = made.get()](const CheckpointInfo& info) {
    return job->check_position(info);
  };
  CENTROID_ASSIGN(made->checkpoints_,
                  parallel::ShardedCheckpoints::open(group, model.manifest(), options));
  parallel::Notice own;
  own.text = run.empty() ? random_name() : run;
  if (group.rank() == 0) {
    const Result<bool> used = is_used(config.checkpoint.dir, config.resume || !run.empty());
    if (!used.ok()) own.status = used.error();
    own.numbers[0] = used.ok() && *used ? 1 : 0;
  }
  CENTROID_ASSIGN(const parallel::Notice first, parallel::announce(group, own, options.timeout));
  CENTROID_TRY(first.status);
  made->run_id_ = first.text;
  made->is_empty_ = first.numbers[0] == 0;
  return made;
}

bool JobCheckpoints::show_the_goal(const WorkerConfig& config, const Model& model) {
  if (!config.resume || config.checkpoint.dir.empty()) return false;
  const auto folder = CheckpointDirectory::view(config.checkpoint.dir);
  if (!folder.ok()) return false;
  for (const CheckpointEntry& entry : folder->list(false)) {
    const auto content = read_manifest(entry.path);
    if (!entry.problem.empty() || !content.ok()) continue;
    const CheckpointInfo& info = content->info;
    const auto trained = info.extra.find("model");
    return info.seed == config.seed && trained != info.extra.end() &&
           trained->second == model.spec() &&
           ((config.rounds > 0 && info.round.value >= config.rounds) ||
            (config.epochs > 0 && info.epoch >= config.epochs));
  }
  return false;
}

bool JobCheckpoints::resumes() const {
  if (config_.resume && is_empty_)
    log::warn("checkpoint.none_found",
              {{"dir", config_.checkpoint.dir}, {"action", "starting afresh"}});
  return config_.resume && !is_empty_;
}

Status JobCheckpoints::check_position(const CheckpointInfo& info) const {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition,
                 "the checkpoint in " + config_.checkpoint.dir + " was made with " + why);
  };
  if (info.seed != config_.seed)
    return refuse("--seed " + std::to_string(info.seed) + ", this job has " +
                  std::to_string(config_.seed));
  if (info.offset >= train_samples_)
    return refuse("other data: it is at sample " + std::to_string(info.offset) + " of " +
                  std::to_string(train_samples_));
  return {};
}

Result<std::unique_ptr<parallel::ShardedParameters>> JobCheckpoints::restore(
    std::vector<parallel::ParameterShape> parameters, const parallel::ShardedOptions& options,
    ShardedSummary& summary) {
  CENTROID_ASSIGN(auto restored, checkpoints_->restore(std::move(parameters), options));
  const CheckpointInfo& info = restored.info;
  run_id_ = info.run_id;
  summary.steps = last_ = restored.parameters->steps();
  summary.epochs = info.epoch;
  summary.offset = info.offset;
  summary.samples = info.epoch * train_samples_ + info.offset;
  log::info("checkpoint.loaded", {{"path", restored.path.string()},
                                  {"version", info.version.value},
                                  {"round", info.round.value},
                                  {"epoch", info.epoch}});
  return std::move(restored.parameters);
}

CheckpointInfo JobCheckpoints::info_of(const ShardedSummary& summary) const {
  CheckpointInfo info;
  info.run_id = run_id_;
  info.version = Version(summary.steps + 1);  // 1: the initial values
  info.round = Round(summary.steps);
  info.epoch = summary.epochs;
  info.offset = summary.offset;
  info.seed = config_.seed;
  info.extra["model"] = model_.spec();
  return info;
}

/// Asked after a step, when the process has reserved what it needs besides.
bool JobCheckpoints::has_room(const parallel::ShardedMemory& planned) const {
  return planned.parameters + planned.gradients + planned.state + planned.snapshot +
             planned.other <=
         memory_limit(config_.memory_limit).bytes;
}

/// A rank without room for a copy writes at once, and waits for the files of all ranks. So all
/// ranks write at once if one must.
Status JobCheckpoints::write_due(const parallel::ShardedParameters& parameters,
                                 const ShardedSummary& summary,
                                 const parallel::ShardedMemory& planned) {
  parallel::Notice own;
  own.numbers[0] = has_room(planned) ? 1 : 0;
  CENTROID_ASSIGN(const auto all, parallel::exchange(group_, own, config_.join_timeout));
  const bool have_room =
      std::ranges::all_of(all, [](const parallel::Notice& one) { return one.numbers[0] == 1; });
  return have_room ? checkpoints_->begin(parameters, info_of(summary))
                   : checkpoints_->write(parameters, info_of(summary));
}

void JobCheckpoints::stepped(const parallel::ShardedParameters& parameters,
                             const ShardedSummary& summary,
                             const parallel::ShardedMemory& planned) {
  const std::uint64_t every = config_.checkpoint.every_rounds;
  if (every == 0 || summary.steps % every != 0) return;
  log_failure(checkpoints_->wait(), last_);
  const Status begun = write_due(parameters, summary, planned);
  log_failure(begun, summary.steps);
  if (begun.ok()) last_ = summary.steps;
}

Status JobCheckpoints::finish(const parallel::ShardedParameters& parameters,
                              const ShardedSummary& summary) {
  const Status before = checkpoints_->wait();
  log_failure(before, last_);
  if (before.ok() && last_ == summary.steps) return {};
  const Status written = checkpoints_->write(parameters, info_of(summary));
  log_failure(written, summary.steps);
  const bool is_there = written.ok() || written.error().code() == ErrorCode::kAlreadyExists;
  if (!is_there) return written;
  last_ = summary.steps;
  return {};
}

}  // namespace centroid::worker
