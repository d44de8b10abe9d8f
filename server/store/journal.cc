#include "server/store/journal.h"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/async/until.h"

namespace centroid::server {

namespace {
constexpr std::chrono::minutes kRepairEvery{1};
}  // namespace

Journal::Journal(Executor executor)
    : executor_(executor), moved_(std::make_shared<Event>(executor)) {}

Task<Status> Journal::start(Executor files, JournalWriter::Options options, journal::Base base,
                            journal::Route route) {
  options.on_progress = [executor = executor_, moved = moved_, callback = callback_] {
    boost::asio::post(executor, [moved, callback] {
      moved->notify_all();
      if (*callback) (*callback)();
    });
  };
  accepts_ = has_chunks_ = rotates_ = false;
  repairs_at_ = {};
  base_.reset();
  gap_.reset();
  auto open = [options = std::move(options), base = std::move(base), route = std::move(route)] {
    return JournalWriter::start(options, base, route);
  };
  CENTROID_CO_ASSIGN(writer_, co_await run_on(std::move(files), std::move(open)));
  co_return Status();
}

Task<void> Journal::stop(Executor files) {
  if (!writer_) co_return;
  const auto closing = std::make_shared<std::unique_ptr<JournalWriter>>(std::move(writer_));
  moved_->notify_all();
  auto close = [closing] { closing->reset(); };
  co_await run_on(std::move(files), std::move(close));
  *callback_ = nullptr;  // posted calls may come after the owner is destroyed
}

Task<void> Journal::drop_attempt() {
  if (!writer_) co_return;
  drop();
  co_await done(writer_->asked());
}

void Journal::drop() {
  accepts_ = false;  // the finished part of the old attempt uses no memory
  if (has_chunks_) writer_->drop_attempt();
  has_chunks_ = false;
}

Task<void> Journal::route(journal::Route route) {
  if (!writer_) co_return;
  drop();
  writer_->route(std::move(route));
  co_await done(writer_->asked());
}

Task<void> Journal::begin_attempt(journal::Base base) {
  if (!writer_) co_return;
  drop();
  base_ = std::move(base);
  const bool may_repair = rotates_at_ == base_->round || !writer_->state().is_broken;
  if (rotates_ && may_repair) begin_segment();
  rotates_ = false;
  co_await done(writer_->asked());
}

void Journal::begin(Round round, std::uint32_t attempt) {
  accepts_ = true;
  round_ = round;
  attempt_ = attempt;
}

void Journal::chunk(ChunkId chunk, journal::Form form, Bytes memory) {
  if (!writer_ || !accepts_) return;
  has_chunks_ = true;
  writer_->chunk(round_, attempt_, chunk, form, memory);
}

void Journal::chunk_copy(ChunkId chunk, journal::Form form, Bytes memory) {
  if (!writer_ || !accepts_) return;
  has_chunks_ = true;
  writer_->chunk_copy(round_, attempt_, chunk, form, memory);
}

Task<void> Journal::room() {
  const auto is_free = [this] { return has_room(); };
  (void)co_await until(*moved_, is_free);
}

Task<void> Journal::drained() {
  if (writer_) co_await done(writer_->asked());
}

std::uint64_t Journal::end_round(journal::Kind kind, journal::Commit commit) {
  if (!writer_) return 0;
  has_chunks_ = false;
  base_.reset();  // a segment that began now would lack this round
  return writer_->end_round(kind, round_, attempt_, std::move(commit));
}

Task<void> Journal::done(std::uint64_t number) {
  const auto is_done = [this, number] { return !writer_ || writer_->is_done(number); };
  (void)co_await until(*moved_, is_done);
}

void Journal::checkpoint_begins(Round round) {
  rotates_ = true;
  rotates_at_ = round;
  // The attempt in progress follows the checkpoint, too, and has no record yet. The next one begins
  // too late for a journal that is broken.
  const bool may_repair =
      writer_ && writer_->state().is_broken && !has_chunks_ && base_ && base_->round == round;
  if (!may_repair) return;
  begin_segment();
  rotates_ = false;
}

/// Behind a gap it counts once the checkpoint that it follows is there.
void Journal::begin_segment() {
  if (writer_->state().is_broken) gap_ = base_->round;
  writer_->begin_segment(*base_);
}

void Journal::checkpoint_written(Round round) {
  if (gap_ && *gap_ <= round) gap_.reset();
  if (writer_) writer_->prune(round);
}

void Journal::give_up() {
  if (writer_) writer_->give_up();
  moved_->notify_all();
}

bool Journal::requires_checkpoint(TimePoint now) {
  const bool is_needed = writer_ && (writer_->state().is_broken || gap_);
  if (!is_needed) repairs_at_ = {};
  if (!is_needed || now < repairs_at_) return false;
  repairs_at_ = now + kRepairEvery;
  return true;
}

JournalWriter::State Journal::state() const {
  return writer_ ? writer_->state() : JournalWriter::State();
}

JournalWriter::State Journal::state(const std::optional<RowsJournalWriter::State>& rows) const {
  JournalWriter::State both = state();
  if (!rows) return both;
  const auto waits = [](const auto& one) { return !one.is_broken && !one.trouble.empty(); };
  both.bytes += rows->bytes;
  both.written += rows->written;
  both.unsynced_seconds = std::max(both.unsynced_seconds, rows->unsynced_seconds);
  if (!both.is_broken && (rows->is_broken || waits(*rows))) both.trouble = rows->trouble;
  both.is_broken = both.is_broken || rows->is_broken;
  return both;
}

}  // namespace centroid::server
