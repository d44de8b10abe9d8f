#include <algorithm>

#include "common/base/log.h"
#include "server/service/cluster.h"
#include "server/shard/placement.h"
#include "server/store/memory_need.h"

/// The tables of sparse rows of a job: how they begin, here or on several servers.
namespace centroid::server {

/// After `load_checkpoint`. Files are read by the blocking thread, which has the tables while it
/// does: this one answers meanwhile, and takes nobody in.
Task<Status> Cluster::load_rows() {
  const Raised loading(use_.is_loading, changed_);
  const char* const what = "the tables of sparse rows are read";
  if (gate_.is_beginning() && rows_.has_tables()) phase_.explain(what);
  const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint", what);
  const auto run_id = std::make_shared<std::string>(job_.run_id);
  auto read = [this, run_id]() -> Status {
    if (job_.resumed_from) {
      CENTROID_ASSIGN(const auto files, checkpoints_->parts_of(*job_.resumed_from));
      CENTROID_TRY(rows_.restore(job_.resumed_from->path, files));
    }
    return rows_.replay(config_.journal_dir, *run_id);
  };
  rows_.begin_reading();
  const Status done = co_await run_on(disk_.executor, std::move(read));
  rows_.end_reading();
  CENTROID_CO_TRY(done);
  job_.run_id = *run_id;
  if (!rows_.has_tables()) co_return Status();
  co_return check_memory(memory_need(loader_.memory_question()),
                         memory_limit(config_.memory_limit));
}

/// With `servers` above 1 they lie on all of them.
Status Cluster::prepare_rows() {
  if (!rows_.has_tables() || config_.servers <= 1) return {};
  RowsServers::Options options;
  options.leader = config_.leader_name();
  options.tables = config_.tables;
  options.journal_dir = config_.journal_dir;
  options.servers = config_.servers;
  options.keeps_journal = config_.keeps_journal();
  options.journal_sync = config_.journal_sync;
  options.lease = config_.lease;
  RowsServers::Hooks hooks;
  hooks.start_journal = [this] { return start_rows_journal(); };
  hooks.write_checkpoint = [this] { return checkpoint_of_rows(); };
  hooks.fail = [this](Error why) {
    log::error("rows.failed", {{"why", why}});
    rows_failure_ = std::move(why);
    request_stop("the tables of sparse rows cannot be served", true);
  };
  hooks.released = [this](const std::string& server) {
    const auto link = shards_.find(server);
    if (!link || !link->is_draining) return;
    const auto is_it = [&](const auto& one) { return one == link; };
    if (std::ranges::none_of(spread_.links, is_it))
      shards_.dismiss(*link, Error(ErrorCode::kCancelled, "drained: its rows have moved"));
  };
  rows_servers_ = std::make_unique<RowsServers>(executor_, disk_.executor, clock_, rows_, shards_,
                                                std::move(options), std::move(hooks));
  CENTROID_ASSIGN(const bool is_spread,
                  rows_servers_->prepare(*checkpoints_, config_.resume, job_.run_id));
  if (is_spread) return {};
  rows_servers_.reset();
  proto::Route alone;
  alone.servers.emplace_back();
  CENTROID_TRY(rows_.set_route(std::move(alone), 0));
  return check_memory(memory_need(loader_.memory_question()), memory_limit(config_.memory_limit));
}

Task<Status> Cluster::checkpoint_of_rows() {
  const auto written = co_await checkpointer_.write_checkpoint(false);
  if (!written.ok()) co_return written.error();
  co_return Status();
}

Status Cluster::start_rows_journal() {
  if (!config_.keeps_journal()) return {};
  RowsJournalWriter::Options options;
  options.folder = config_.journal_dir;
  options.run_id = job_.run_id;
  options.sync_every = config_.journal_sync;
  options.waits = config_.journal_full == "wait";
  options.on_sync = [probe = &probe_](double seconds) { probe->journal_synced(seconds); };
  options.may_write = gate_.may_write();
  return rows_.start_journal(executor_, std::move(options));
}

}  // namespace centroid::server
