#include "server/shard/shard_journal.h"

#include <memory>
#include <utility>

#include "common/base/log.h"
#include "common/storage/file.h"

namespace centroid::server {

ShardJournal::ShardJournal(ShardContext& context, const ShardChunks& chunks)
    : context_(context),
      chunks_(chunks),
      writer_(context.executor),
      disk_(context.options.journal_dir) {}

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

Task<Status> ShardJournal::check_owner() {
  const std::string& folder = context_.options.journal_dir;
  const std::string& run_id = context_.leader.terms().run_id;
  if (!recalled_) {
    co_await writer_.stop(context_.files);
    auto scan = [folder, run_id, terms = terms()] {
      return journal::Parts::scan(folder, run_id, terms);
    };
    CENTROID_CO_ASSIGN(auto found, co_await run_on(context_.files, std::move(scan)));
    recalled_ = std::make_shared<const journal::Parts>(std::move(found));
  }
  if (recalled_->others().empty()) co_return Status();
  co_return Error(ErrorCode::kFailedPrecondition,
                  "journal " + folder + ": it belongs to run " + recalled_->others() +
                      ", this one to '" + run_id + "' (" + terms() +
                      "): move it away, or start this server with another run_dir");
}

Task<Status> ShardJournal::start(proto::ServerState state) {
  CENTROID_CO_TRY(co_await check_owner());
  recalled_.reset();
  co_await writer_.stop(context_.files);
  const std::uint32_t sync_ms = chunks_.model().journal_sync_ms;
  JournalWriter::Options options;
  options.folder = context_.options.journal_dir;
  options.sync_every = std::chrono::milliseconds(sync_ms);
  options.on_sync = [this](double seconds) { context_.probe.journal_synced(seconds); };
  journal::Base begin = base(state.round);
  CENTROID_CO_TRY(co_await writer_.start(context_.files, std::move(options), std::move(begin)));
  log::info(
      "journal.started",
      {{"dir", context_.options.journal_dir}, {"round", state.round.value}, {"sync_ms", sync_ms}});
  co_return Status();
}

Task<void> ShardJournal::forget() {
  recalled_.reset();
  co_await writer_.stop(context_.files);
}

Task<Result<journal::Parts::Numbers>> ShardJournal::recall(proto::Recall wanted) {
  CENTROID_CO_TRY(co_await check_owner());
  auto read = [parts = recalled_, wanted] {
    return parts->read(wanted.round, wanted.attempt, wanted.chunk);
  };
  co_return co_await run_on(context_.files, std::move(read));
}

Task<void> ShardJournal::checkpointed(Round round) {
  writer_.checkpoint_written(round);
  if (chunks_.model().writes_journal) co_return;
  const Status ours = co_await check_owner();
  if (!ours.ok()) co_return;
  recalled_.reset();
  auto remove = [folder = context_.options.journal_dir] {
    remove_needless(journal::segments_of(folder));
  };
  co_await run_on(context_.files, std::move(remove));
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
