#include "server/service/job_start.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/storage/file.h"
#include "server/service/replay.h"
#include "server/service/waits.h"

namespace centroid::server {

/// From another version than the next one; the round that was open does not count.
void JobStart::go_on_from(JobState next) {
  open_ = OpenRound(policy_);
  images_.forget_newest();
  members_.roster.restore(std::max(members_.roster.generation(), next.least_generation));
  job_.replace(std::move(next));
}

/// After a state was loaded, with all chunks on this server: the rounds behind its checkpoint. They
/// are read as settings are now, which may be changed meanwhile.
Task<Status> JobStart::begin_replay() {
  replay_.reset();
  auto open = [folder = config_.journal.dir] { return std::make_unique<journal::Reader>(folder); };
  auto reader = co_await run_on(disk_.executor, std::move(open));
  CENTROID_CO_TRY(reader->listed());
  if (reader->segments().empty()) co_return Status();
  if (!job_.shard)
    co_return Error(ErrorCode::kFailedPrecondition,
                    "journal " + config_.journal.dir +
                        ": there is no checkpoint to which its rounds could be added");
  // The replay ends with a sync. The disk begins now, while the rounds are read and applied.
  boost::asio::post(opener_.context(), [last = reader->segments().back().path] {
    const auto file = file::open_to_change(last);
    if (file.ok()) (void)file::sync(*file, last);
  });
  replay_ = std::make_shared<Replay>(context_, std::move(reader), round_journal_, shards_, local_);
  co_return Status();
}

/// True: the job goes on from its end; false: a server must come first.
Task<Result<bool>> JobStart::replay_on() {
  CENTROID_CO_ASSIGN(const bool is_over, co_await replay_->run());
  if (is_over) {
    replay_.reset();
    checkpointer_.catch_up();
  }
  changed_.notify_all();
  co_return is_over;
}

/// Once there are parameters. A journal goes on from a checkpoint, so the first one comes before.
Task<Status> JobStart::start_journal() {
  if (!config_.writes_journal() || journal_.is_on()) co_return Status();
  if (spread_.has_others()) CENTROID_CO_TRY(co_await checkpointer_.finish_writing());
  std::optional<Waits::Guard> full;
  std::string trouble;
  for (;;) {
    const auto unsettled = [&] { return table_servers_ ? table_servers_->why_unsettled() : ""; };
    Status begun;
    if (job_.checkpointed == Version()) {
      if (const std::string why = unsettled(); !why.empty()) {  // `TableServers::waits` tells of it
        phase_.set(Phase::kInitializing, "the journal begins when all tables are here: " + why);
        (void)co_await waits_.next_change();
        co_return Status();  // again
      }
      const auto waits = waits_.begin(WaitCause::kCheckpoint, "job", "checkpoint",
                                      "the first one, with which the journal begins");
      phase_.set(Phase::kInitializing, "the checkpoint with which the journal begins is written");
      use_.is_loop_writing = true;
      const auto losses = [&] { return table_servers_ ? table_servers_->losses() : 0; };
      const std::uint64_t before = losses();  // one that was lost may be back already
      const auto written = co_await checkpointer_.write_checkpoint(false);
      use_.is_loop_writing = false;
      if (!written.ok() &&
          (servers_.has_lost_server() || !unsettled().empty() || losses() != before))
        co_return Status();  // again when it is settled
      if (!written.ok() && gate_.has_election() && !gate_.holds().ok() &&
          written.error().code() == ErrorCode::kUnavailable) {
        log::warn("journal.start_failed",
                  {{"why", written.error()}, {"action", "it is tried again"}});
        (void)co_await waits_.next_change(clock_.now() + kRetryPause);
        co_return co_await gate_.may_commit();
      }
      if (!written.ok())
        begun = written.error().with_context("journal on: the checkpoint that it begins with");
    }
    CENTROID_CO_TRY(co_await gate_.may_commit());
    if (begun.ok()) {
      JournalWriter::Options options;
      options.folder = config_.journal.dir;
      options.sync_every = config_.journal.sync;
      options.waits = config_.journal.full == "wait";
      options.on_sync = [this](double seconds) { probe_.journal_synced(seconds); };
      options.may_write = gate_.may_write();
      journal_.on_progress([this] { changed_.notify_all(); });  // chunks may wait for its room
      journal::Base base = round_journal_.base();
      journal::Route route = servers_.journal_route();
      begun = co_await journal_.start(opener_.executor(), std::move(options), std::move(base),
                                      std::move(route));
    }
    if (begun.ok()) break;
    if (config_.journal.full != "wait" || !is_of_disk(begun.error())) co_return begun;
    if (!full)
      log::error("journal.stalled",
                 {{"error", begun.error()}, {"action", "no round begins before"}});
    trouble = begun.error().message();
    if (!full) waits_.begin(full, WaitCause::kJournal, "job", "journal", [&] { return trouble; });
    phase_.set(Phase::kInitializing, "the journal cannot begin: " + trouble);
    JournalWriter::State told;
    told.trouble = trouble;
    probe_.journal(told);
    (void)co_await waits_.next_change(clock_.now() + kRetryPause);
    if (stopping_.is_requested || commands_.pause || restore_ || servers_.has_lost_server() ||
        use_.is_writing)
      co_return Status();  // again
  }
  log::info("journal.started", {{"dir", config_.journal.dir},
                                {"round", job_.round.value - 1},
                                {"sync_ms", config_.journal.sync.count()}});
  co_return Status();
}

}  // namespace centroid::server
