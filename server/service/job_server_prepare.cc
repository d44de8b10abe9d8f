#include <algorithm>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/journal_reader.h"
#include "common/checkpoint/restore_mark.h"
#include "common/checkpoint/rows_journal.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/finite.h"
#include "server/service/buffers.h"
#include "server/service/job_server.h"
#include "server/service/pulls.h"
#include "server/service/replay.h"
#include "server/service/room.h"
#include "server/store/memory_need.h"

namespace centroid::server {

namespace {
/// Nothing is on the disk before the end: said at the start, while it costs nothing to mend.
void warn_if_not_durable(const ServerConfig& config) {
  const bool has_checkpoints = config.checkpoint.every_rounds > 0 ||
                               config.checkpoint.every_epochs > 0 ||
                               config.checkpoint.interval.count() > 0;
  if (config.writes_journal() || has_checkpoints) return;
  const std::string rows = config.tables.empty() ? "" : " and all pushes to tables of sparse rows";
  const std::string journal = config.may_meet_peers() ? "" : ", or journal.mode on";
  log::warn("job.durability_reduced",
            {{"why", "checkpoints are written at the end only, and there is no journal"},
             {"lost_with_the_server", "all rounds" + rows + " since the start"},
             {"action",
              "set checkpoint.every_rounds, checkpoint.every_epochs or "
              "checkpoint.interval" +
                  journal}});
}

void tell_exchange(const ServerConfig& config) {
  if (config.automatic.star_for.empty()) return;
  log::info("exchange.chosen",
            {{"exchange", config.exchange}, {"why", config.automatic.star_for + " needs it"}});
}

/// A job that begins anew may not lie over an earlier one.
Status check_new_run(const ServerConfig& config, const CheckpointDirectory& checkpoints) {
  CENTROID_ASSIGN(const auto rounds, journal::segments_of(config.journal.dir));
  CENTROID_ASSIGN(const auto rows, rows_journal::segments_of(config.journal.dir));
  if (!rounds.empty() || !rows.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "there is a journal of an earlier run in " + config.journal.dir +
                     ": go on from it with `resume`, or choose another `run_dir`");
  CENTROID_ASSIGN(const auto found, checkpoints.entries(false));
  if (found.empty()) return {};
  // Their versions would hide this job's, and the newest are kept.
  return Error(ErrorCode::kFailedPrecondition,
               "there are checkpoints of an earlier run in " + checkpoints.root().string() +
                   " (run '" + found.front().info.run_id +
                   "'): go on from them with `resume`, or choose another `run_dir`");
}

}  // namespace

Task<Status> JobServer::open_checkpoints() {
  CheckpointPolicy policy;
  policy.keep = ctx_.config.checkpoint.keep;
  policy.keep_every_rounds = ctx_.config.checkpoint.keep_every;
  policy.shard_bytes = ctx_.config.checkpoint.shard_bytes;
  policy.on_pruned = [this](const CheckpointEntry& entry) {
    ctx_.events.publish("checkpoint.deleted", {{"path", entry.path.string()},
                                               {"version", entry.version.value},
                                               {"why", "checkpoint.keep"}});
  };
  policy.is_in_use = [this](const CheckpointEntry& entry) {
    return ctx_.fetched.holds(entry.version, ctx_.clock.now());
  };
  policy.is_sole = ctx_.gate.has_election();
  policy.may_write = ctx_.gate.may_write();
  auto open = [this, policy = std::move(policy)]() -> Status {
    auto opened = CheckpointDirectory::open(ctx_.config.checkpoint.dir, policy);
    if (!opened.ok()) return std::move(opened).error().with_context("checkpoint.dir");
    ctx_.checkpoints = std::move(opened).value();
    return ctx_.config.resume ? Status() : check_new_run(ctx_.config, *ctx_.checkpoints);
  };
  co_return co_await run_on(ctx_.disk.executor, std::move(open));
}

Task<Status> JobServer::prepare() {
  fault::forbid_storage_here("the service thread");
  CENTROID_CO_TRY(co_await open_checkpoints());
  CENTROID_CO_ASSIGN(const bool has_settings, co_await ctx_.commands.load(*ctx_.checkpoints));
  if (has_settings) ctx_.settings_changed();
  ctx_.probe.scale_hint(ctx_.commands.scale_hint.workers);
  if (parts_.rows.has_tables()) CENTROID_CO_TRY(parts_.loader.check_tables_room());
  if (ctx_.config.resume) {
    auto complete = [this] {
      const auto may_write = ctx_.gate.may_write();
      return complete_restore(ctx_.config.journal.dir, *ctx_.checkpoints, may_write);
    };
    CENTROID_CO_TRY(co_await ctx_.gate.act(ctx_.disk.hurried(), std::move(complete)));
    CENTROID_CO_ASSIGN(JobState newest, co_await parts_.loader.load_checkpoint());
    parts_.start.go_on_from(std::move(newest));
    CENTROID_CO_TRY(co_await prepare_rows());
    if (!parts_.table_servers) CENTROID_CO_TRY(co_await load_rows());
    CENTROID_CO_TRY(co_await parts_.start.begin_replay());
    if (ctx_.replay) {  // what needs other servers goes on when they are here
      if (ctx_.gate.is_beginning()) ctx_.phase.explain("the journal is replayed");
      const auto what = [this] { return present_round(ctx_.job) + " is replayed from it"; };
      const auto waits = ctx_.waits.begin(WaitCause::kJournal, "job", "journal", what);
      CENTROID_CO_ASSIGN(const bool is_over, co_await parts_.start.replay_on());
      if (!is_over) log::info("journal.servers_awaited", {{"why", ctx_.replay->reason()}});
    }
  }
  if (ctx_.job.run_id.empty()) {
    ServerConfig fresh;
    CENTROID_CO_TRY(finish(fresh));
    ctx_.job.run_id = fresh.run_id;
  }
  co_await stop_.honour_stop();
  if (!ctx_.config.resume) {
    auto remove = [&folder = ctx_.config.journal.dir] { return RestoreMark::remove(folder); };
    CENTROID_CO_TRY(co_await run_on(ctx_.disk.executor, std::move(remove)));  // of another job
    CENTROID_CO_TRY(co_await prepare_rows());
  }
  if (!parts_.table_servers) CENTROID_CO_TRY(co_await start_rows_journal());
  if (!ctx_.job.shard && ctx_.config.init != "first-worker") {
    CENTROID_CO_ASSIGN(JobState initial, co_await parts_.loader.load_initial_file());
    parts_.start.go_on_from(std::move(initial));
  }
  if (ctx_.phase.is(Phase::kWaiting)) ctx_.phase.explain("no worker has joined yet");
  ctx_.phase.begin();
  ctx_.gate.set_prepared();
  ctx_.changed.notify_all();  // workers wait for it
  warn_if_not_durable(ctx_.config);
  tell_exchange(ctx_.config);
  if (!ctx_.commands.is_saved()) {  // a setting was changed meanwhile
    co_await ctx_.commands.save_now();
  }
  co_return Status();
}

}  // namespace centroid::server
