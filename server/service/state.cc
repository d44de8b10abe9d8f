#include <algorithm>

#include "common/base/log.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/restore_mark.h"
#include "common/checkpoint/rows_journal.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/finite.h"
#include "server/service/buffers.h"
#include "server/service/cluster.h"
#include "server/service/pulls.h"
#include "server/service/room.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {
/// Nothing is on the disk before the end: said at the start, while it costs nothing to mend.
void warn_if_not_durable(const ServerConfig& config) {
  const bool has_checkpoints = config.checkpoint_every_rounds > 0 ||
                               config.checkpoint_every_epochs > 0 ||
                               config.checkpoint_interval.count() > 0;
  if (config.keeps_journal() || has_checkpoints) return;
  const std::string rows = config.tables.empty() ? "" : " and all pushes to tables of sparse rows";
  const std::string journal = config.is_peer_to_peer() ? "" : ", or journal.mode on";
  log::warn("job.not_durable",
            {{"why", "checkpoints are written at the end only, and there is no journal"},
             {"lost_with_the_server", "all rounds" + rows + " since the start"},
             {"action",
              "set checkpoint.every_rounds, checkpoint.every_epochs or "
              "checkpoint.interval" +
                  journal}});
}

/// A job that begins anew may not lie over an earlier one.
Status check_new_run(const ServerConfig& config, const CheckpointDirectory& checkpoints) {
  if (!journal::segments_of(config.journal_dir).empty() ||
      !rows_journal::segments_of(config.journal_dir).empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "there is a journal of an earlier run in " + config.journal_dir +
                     ": go on from it with `resume`, or choose another `run_dir`");
  const auto found = checkpoints.list(false);
  if (found.empty()) return {};
  // Their versions would hide this job's, and the newest are kept.
  return Error(ErrorCode::kFailedPrecondition,
               "there are checkpoints of an earlier run in " + checkpoints.root().string() +
                   " (run '" + found.front().info.run_id +
                   "'): go on from them with `resume`, or choose another `run_dir`");
}

}  // namespace

std::string codec_in(const CheckpointInfo& info) {
  const auto kept = info.extra.find("codec");
  const bool is_known = kept != info.extra.end() && CodecSpec::parse(kept->second).ok();
  return is_known ? kept->second : kUnknownCodec;
}

std::uint64_t elements_of_largest(const FragmentPlan& fragments) {
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i)
    most = std::max(most, fragments[i].elements);
  return most;
}

Result<std::uint64_t> contribution_bytes(const FragmentPlan& fragments, const std::string& spec) {
  CENTROID_ASSIGN(const auto codec, make_codec(spec));
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < fragments.count(); ++i) {
    std::uint64_t bytes = 0;
    for (const Chunk& chunk : fragments[i].chunks) bytes += codec->max_bytes(chunk.elements);
    most = std::max(most, bytes);
  }
  return most;
}

Task<Status> Cluster::prepare() {
  CheckpointPolicy policy;
  policy.keep = config_.checkpoint_keep;
  policy.keep_every_rounds = config_.checkpoint_keep_every;
  policy.shard_bytes = config_.checkpoint_shard_bytes;
  policy.on_pruned = [this](const CheckpointEntry& entry) {
    events_.publish("checkpoint.deleted", {{"path", entry.path.string()},
                                           {"version", entry.version.value},
                                           {"why", "checkpoint.keep"}});
  };
  policy.is_in_use = [this](const CheckpointEntry& entry) {
    return fetched_.holds(entry.version, clock_.now());
  };
  policy.is_sole = gate_.has_election();
  policy.may_write = gate_.may_write();
  auto opened = CheckpointDirectory::open(config_.checkpoint_dir, policy);
  if (!opened.ok()) co_return std::move(opened).error().with_context("checkpoint.dir");
  checkpoints_ = std::move(opened).value();
  if (!config_.resume) CENTROID_CO_TRY(check_new_run(config_, *checkpoints_));
  CENTROID_CO_ASSIGN(const bool has_settings, commands_.load(*checkpoints_));
  if (has_settings) settings_changed();
  probe_.scale_hint(commands_.scale_hint.workers);
  if (rows_.has_tables()) CENTROID_CO_TRY(loader_.check_tables_room());
  if (config_.resume) {
    auto complete = [this] {
      const auto may_write = gate_.may_write();
      return complete_restore(config_.journal_dir, *checkpoints_, may_write);
    };
    CENTROID_CO_TRY(co_await gate_.act(disk_.hurried(), std::move(complete)));
    CENTROID_CO_ASSIGN(JobState newest, co_await loader_.load_checkpoint());
    start_.go_on_from(std::move(newest));
    CENTROID_CO_TRY(prepare_rows());
    if (!rows_servers_) CENTROID_CO_TRY(co_await load_rows());
    CENTROID_CO_TRY(start_.begin_replay());
    if (replay_) {  // what needs other servers goes on when they are here
      if (gate_.is_beginning()) phase_.explain("the journal is replayed");
      const auto what = [this] { return present_round(job_) + " is replayed from it"; };
      const auto waits = waits_.begin(WaitCause::kJournal, "job", "journal", what);
      CENTROID_CO_ASSIGN(const bool is_over, co_await start_.replay_on());
      if (!is_over) log::info("journal.waits_for_servers", {{"why", replay_->reason()}});
    }
  }
  if (job_.run_id.empty()) {
    ServerConfig fresh;
    CENTROID_CO_TRY(finish(fresh));
    job_.run_id = fresh.run_id;
  }
  co_await heed_stop();
  if (!config_.resume) CENTROID_CO_TRY(RestoreMark::remove(config_.journal_dir));  // of another job
  if (!config_.resume) CENTROID_CO_TRY(prepare_rows());
  if (!rows_servers_) CENTROID_CO_TRY(start_rows_journal());
  if (!job_.store && config_.init != "first-worker") {
    CENTROID_CO_ASSIGN(JobState initial, co_await loader_.load_initial_file());
    start_.go_on_from(std::move(initial));
  }
  if (phase_.is(Phase::kWaiting)) phase_.explain("no worker has joined yet");
  phase_.begin();
  gate_.set_prepared();
  warn_if_not_durable(config_);
  if (!commands_.is_saved()) {  // a setting was changed meanwhile
    co_await commands_.save_now();
  }
  co_return Status();
}

}  // namespace centroid::server
