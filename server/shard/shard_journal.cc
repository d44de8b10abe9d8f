#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "server/shard/shard.h"

/// The journal of a shard server: what it has prepared of each round. Which of it counts stands in
/// the leader's.
namespace centroid::server {

using journal::Form;

std::string Shard::journal_terms() const { return "server=" + options_.name; }

/// The same numbers that the leader writes of its own chunks.
Form Shard::journal_form() const {
  if (model_.apply_on_worker) return Form::kMean;
  const bool is_early = store_->optimizer().slots() == 0 && model_.clip_norm == 0;
  return is_early ? Form::kParameters : Form::kSum;
}

journal::Base Shard::journal_base(Round over) const {
  journal::Base base;
  base.run_id = terms_.run_id;
  base.terms = journal_terms();
  base.round = over;
  base.version = store_->version();
  base.optimizer_step = store_->optimizer_step();
  base.plan_hash = store_->plan().hash();
  return base;
}

/// What stands in the folder, once a session. fails failed_precondition: it is another run's
Status Shard::look_at_journal(const std::string& run_id) {
  if (!recalled_) {
    journal_.stop();
    CENTROID_ASSIGN(recalled_, journal::Parts::scan(options_.journal_dir, run_id, journal_terms()));
  }
  if (recalled_->others().empty()) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "journal " + options_.journal_dir + ": it belongs to run " + recalled_->others() +
                   ", this one to '" + run_id + "' (" + journal_terms() +
                   "): move it away, or start this server with another run_dir");
}

/// What the leader has not committed of it is gone then.
Status Shard::open_journal(const proto::ServerState& state) {
  CENTROID_TRY(look_at_journal(terms_.run_id));
  recalled_.reset();
  journal_.stop();
  JournalWriter::Options options;
  options.folder = options_.journal_dir;
  options.sync_every = std::chrono::milliseconds(model_.journal_sync_ms);
  options.on_sync = [this](double seconds) { probe_.journal_synced(seconds); };
  CENTROID_TRY(journal_.start(std::move(options), journal_base(state.round)));
  log::info("journal.begun", {{"dir", options_.journal_dir},
                              {"round", state.round.value},
                              {"sync_ms", model_.journal_sync_ms}});
  return {};
}

/// The chunks of the merged round are in the journal: its end, before the leader hears of it.
Task<Status> Shard::end_journal_round() {
  if (!journal_.is_on()) co_return Status();
  journal::Commit commit;
  commit.version = store_->version().next();
  commit.optimizer_step = store_->optimizer_step() + 1;
  commit.weight = merging_->total_weight;
  commit.chunks = static_cast<std::uint32_t>(part().size());
  commit.unix_seconds = clock_.unix_seconds();
  const std::string where = "round " + to_string(merging_->round) + " on server '" + options_.name;
  const std::uint64_t number = journal_.end_round(journal::Kind::kCommit, std::move(commit));
  const TimePoint begin = clock_.now();
  co_await journal_.done(number);
  static const trace::Lane kLane("journal");
  probe_.journal_stage().ended(kLane, begin, clock_.now(), merging_ ? merging_->round.value : 0);
  if (!is_led()) co_return Error(ErrorCode::kCancelled, "the leader was lost");
  if (const auto state = journal_.state(); state.is_broken)
    co_return Error(ErrorCode::kResourceExhausted,
                    where + "' is not in its journal, which is broken: " + state.trouble);
  fault::point("servers.part_prepared");
  co_return Status();
}

Result<journal::Parts::Numbers> Shard::recall(const proto::Recall& wanted) {
  CENTROID_TRY(look_at_journal(terms_.run_id));
  return recalled_->read(wanted.round, wanted.attempt, wanted.chunk);
}

/// There is a checkpoint with that many rounds: what is older is not asked for any more.
void Shard::checkpointed(Round round) {
  journal_.checkpoint_written(round);
  if (model_.keeps_journal || !look_at_journal(terms_.run_id).ok()) return;
  for (const LogSegment& old : journal::segments_of(options_.journal_dir))
    (void)file::remove(old.path);  // of a time when there was one
  recalled_.reset();
}

}  // namespace centroid::server
