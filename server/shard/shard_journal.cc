#include "server/shard/shard_journal.h"

#include <utility>

#include "common/base/log.h"
#include "common/storage/file.h"

namespace centroid::server {

using journal::Form;

ShardJournal::ShardJournal(ShardContext& context, const ShardChunks& chunks)
    : context_(context),
      chunks_(chunks),
      writer_(context.executor),
      disk_(context.options.journal_dir) {}

Form ShardJournal::form() const {
  if (chunks_.model().apply_on_worker) return Form::kMean;
  const bool is_early = chunks_.store().optimizer().slots() == 0 && chunks_.model().clip_norm == 0;
  return is_early ? Form::kParameters : Form::kSum;
}

journal::Base ShardJournal::base(Round over) const {
  journal::Base base;
  base.run_id = context_.leader.terms().run_id;
  base.terms = terms();
  base.round = over;
  base.version = chunks_.store().version();
  base.optimizer_step = chunks_.store().optimizer_step();
  base.plan_hash = chunks_.plan().hash();
  return base;
}

Status ShardJournal::check_owner() {
  const std::string& folder = context_.options.journal_dir;
  const std::string& run_id = context_.leader.terms().run_id;
  if (!recalled_) {
    writer_.stop();
    CENTROID_ASSIGN(recalled_, journal::Parts::scan(folder, run_id, terms()));
  }
  if (recalled_->others().empty()) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "journal " + folder + ": it belongs to run " + recalled_->others() +
                   ", this one to '" + run_id + "' (" + terms() +
                   "): move it away, or start this server with another run_dir");
}

Status ShardJournal::start(const proto::ServerState& state) {
  CENTROID_TRY(check_owner());
  recalled_.reset();
  writer_.stop();
  const std::uint32_t sync_ms = chunks_.model().journal_sync_ms;
  JournalWriter::Options options;
  options.folder = context_.options.journal_dir;
  options.sync_every = std::chrono::milliseconds(sync_ms);
  options.on_sync = [this](double seconds) { context_.probe.journal_synced(seconds); };
  CENTROID_TRY(writer_.start(std::move(options), base(state.round)));
  log::info(
      "journal.begun",
      {{"dir", context_.options.journal_dir}, {"round", state.round.value}, {"sync_ms", sync_ms}});
  return {};
}

void ShardJournal::forget() {
  writer_.stop();
  recalled_.reset();
}

Result<journal::Parts::Numbers> ShardJournal::recall(const proto::Recall& wanted) {
  CENTROID_TRY(check_owner());
  return recalled_->read(wanted.round, wanted.attempt, wanted.chunk);
}

void ShardJournal::checkpointed(Round round) {
  writer_.checkpoint_written(round);
  if (chunks_.model().keeps_journal || !check_owner().ok()) return;
  for (const LogSegment& old : journal::segments_of(context_.options.journal_dir))
    (void)file::remove(old.path);  // of a time when there was one
  recalled_.reset();
}

void ShardJournal::add_to(proto::ServerReport& report) const {
  const auto journal = writer_.state();
  report.journal_bytes = journal.bytes;
  report.trouble = journal.trouble;
  const file::Space disk = disk_.space();
  report.disk_free_bytes = disk.free_bytes;
  report.disk_total_bytes = disk.total_bytes;
}

}  // namespace centroid::server
