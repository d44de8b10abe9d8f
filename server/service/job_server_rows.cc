#include <algorithm>

#include "common/base/log.h"
#include "server/service/job_server.h"
#include "server/service/waits.h"
#include "server/shard/placement.h"
#include "server/store/memory_need.h"

/// The tables of sparse rows of a job: how they begin, here or on several servers.
namespace centroid::server {

/// After `load_checkpoint`. Files are read by the blocking thread, which has the tables while it
/// does: this one answers meanwhile, and takes nobody in.
Task<Status> JobServer::load_rows() {
  const Raised loading(ctx_.use.is_loading, ctx_.changed);
  const char* const what = "the tables of sparse rows are read";
  if (ctx_.gate.is_beginning() && parts_.rows.has_tables()) ctx_.phase.explain(what);
  const auto waits = ctx_.waits.begin(WaitCause::kCheckpoint, "job", "checkpoint", what);
  const auto run_id = std::make_shared<std::string>(ctx_.job.run_id);
  auto read = [this, run_id]() -> Status {
    if (ctx_.job.resumed_from) {
      CENTROID_ASSIGN(const auto files, ctx_.checkpoints->parts_of(*ctx_.job.resumed_from));
      CENTROID_TRY(parts_.rows.restore(ctx_.job.resumed_from->path, files));
    }
    return parts_.rows.replay(ctx_.config.journal.dir, *run_id);
  };
  parts_.rows.begin_reading();
  const Status done = co_await run_on(ctx_.disk.executor, std::move(read));
  parts_.rows.end_reading();
  CENTROID_CO_TRY(done);
  ctx_.job.run_id = *run_id;
  if (!parts_.rows.has_tables()) co_return Status();
  co_return check_memory(memory_need(parts_.loader.memory_question()),
                         memory_limit(ctx_.config.memory.limit));
}

/// With `servers` above 1 all of them have rows.
Task<Status> JobServer::prepare_rows() {
  if (!parts_.rows.has_tables() || ctx_.config.servers <= 1) co_return Status();
  TableOptions options;
  options.leader = ctx_.config.leader_name();
  options.tables = ctx_.config.tables;
  options.journal_dir = ctx_.config.journal.dir;
  options.servers = ctx_.config.servers;
  options.writes_journal = ctx_.config.writes_journal();
  options.journal_sync = ctx_.config.journal.sync;
  options.lease = ctx_.config.timeouts.lease;
  TableHooks hooks;
  hooks.start_journal = [this] { return start_rows_journal(); };
  hooks.write_checkpoint = [this] { return checkpoint_of_rows(); };
  hooks.fail = [this](Error why) {
    log::error("rows.failed", {{"why", why}});
    rows_failure_ = std::move(why);
    stop_.request_stop("the tables of sparse rows cannot be served", true);
  };
  hooks.changed = [this] { ctx_.changed.notify_all(); };
  hooks.released = [this](const std::string& server) {
    const auto shard = parts_.shards.find(server);
    if (!shard || !shard->is_draining) return;
    const auto is_it = [&](const auto& one) { return one == shard; };
    if (std::ranges::none_of(ctx_.spread.present, is_it))
      parts_.shards.dismiss(*shard, Error(ErrorCode::kCancelled, "drained: its rows have moved"));
  };
  parts_.table_servers =
      std::make_unique<TableServers>(ctx_.executor, ctx_.disk.executor, ctx_.clock, parts_.rows,
                                     parts_.shards, std::move(options), std::move(hooks));
  TableServers& servers = *parts_.table_servers;
  const bool resumes = ctx_.config.resume;
  CENTROID_CO_ASSIGN(const bool is_spread,
                     co_await servers.prepare(*ctx_.checkpoints, resumes, ctx_.job.run_id));
  if (is_spread) co_return Status();
  parts_.table_servers.reset();
  proto::Route alone;
  alone.servers.emplace_back();
  CENTROID_CO_TRY(parts_.rows.moves().set_route(std::move(alone), 0));
  co_return check_memory(memory_need(parts_.loader.memory_question()),
                         memory_limit(ctx_.config.memory.limit));
}

Task<Status> JobServer::checkpoint_of_rows() {
  const auto written = co_await parts_.checkpointer.write_checkpoint(false);
  if (!written.ok()) co_return written.error();
  co_return Status();
}

/// A disk that is full is waited for, as that of the rounds' journal.
Task<Status> JobServer::start_rows_journal() {
  if (!ctx_.config.writes_journal()) co_return Status();
  std::optional<Waits::Guard> waits;
  std::string trouble;
  for (;;) {
    const Status begun = co_await open_rows_journal();
    if (begun.ok() || ctx_.config.journal.full != "wait" || !is_of_disk(begun.error()))
      co_return begun;
    if (ctx_.stopping.is_requested || ctx_.gate.is_deposed()) co_return begun;
    trouble = begun.error().message();
    if (!waits) {
      log::error("rows_journal.stalled",
                 {{"error", begun.error()}, {"action", "no push is taken before"}});
      ctx_.waits.begin(waits, WaitCause::kJournal, "tables", "journal", [&] { return trouble; });
    }
    (void)co_await ctx_.waits.next_change(ctx_.clock.now() + kRetryPause);
  }
}

Task<Status> JobServer::open_rows_journal() {
  RowsJournalWriter::Options options;
  options.folder = ctx_.config.journal.dir;
  options.run_id = ctx_.job.run_id;
  options.sync_every = ctx_.config.journal.sync;
  options.waits = ctx_.config.journal.full == "wait";
  options.on_sync = [probe = &ctx_.probe](double seconds) { probe->journal_synced(seconds); };
  options.may_write = ctx_.gate.may_write();
  co_return co_await parts_.rows.journal().start(ctx_.executor, ctx_.disk.executor,
                                                 std::move(options));
}

}  // namespace centroid::server
