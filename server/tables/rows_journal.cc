#include "server/tables/rows_journal.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

using rows_journal::Entry;

Task<Status> RowsJournal::start(Executor executor, Executor files,
                                RowsJournalWriter::Options options) {
  if (store_.size() == 0) co_return Status();
  moved_ = std::make_shared<Event>(executor);
  options.on_progress = [executor, moved = moved_] {
    boost::asio::post(executor, [moved] { moved->notify_all(); });
  };
  for (const RowTable& table : store_.tables()) options.tables.push_back(to_string(table.spec()));
  const std::string folder = options.folder.string();
  const auto sync = options.sync_every;
  auto open = [options = std::move(options), next = next_] {
    return RowsJournalWriter::start(options, next);
  };
  CENTROID_CO_ASSIGN(writer_, co_await run_on(std::move(files), std::move(open)));
  writer_->prune(first_segment_);
  log::info("rows_journal.started",
            {{"dir", folder}, {"segment", next_.segment}, {"sync_ms", sync.count()}});
  co_return Status();
}

void RowsJournal::set_first_segment(std::uint64_t number) {
  first_segment_ = next_.segment = std::max<std::uint64_t>(number, 1);
}

std::uint64_t RowsJournal::rotate() { return writer_ ? writer_->rotate() : next_.segment; }

void RowsJournal::prune(std::uint64_t first) {
  if (writer_) writer_->prune(first);
}

bool RowsJournal::requires_checkpoint(std::uint64_t bytes) const {
  if (!writer_) return false;
  const RowsJournalWriter::State state = writer_->state();
  return state.is_broken || (bytes != 0 && state.bytes > bytes);
}

void RowsJournal::give_up() {
  if (writer_) writer_->give_up();
}

std::optional<RowsJournalWriter::State> RowsJournal::state() const {
  if (!writer_) return std::nullopt;
  return writer_->state();
}

/// An entry with the present time.
Entry RowsJournal::entry(Entry::Kind kind, std::size_t table, std::size_t rows, Bytes data) const {
  Entry entry;
  entry.kind = kind;
  entry.table = static_cast<std::uint16_t>(table);
  entry.rows = static_cast<std::uint32_t>(rows);
  entry.now = store_.now();
  entry.data = data;
  return entry;
}

void RowsJournal::push(const proto::RowsPush& head, std::uint64_t client, Bytes data) {
  if (!writer_) return;
  Entry push = entry(Entry::Kind::kPush, head.table, head.rows, data);
  push.client = client;
  push.sequence = head.sequence;
  push.step = head.step;
  writer_->append(push);
}

/// Without max_bytes and max_age a pull has no effect on later pushes.
void RowsJournal::pull(const proto::RowsPull& head, Bytes data) {
  const RowSpec& spec = store_.spec(head.table);
  if (!writer_ || (spec.max_age == 0 && spec.max_bytes == 0)) return;
  writer_->append(entry(Entry::Kind::kPull, head.table, head.rows, data));
}

void RowsJournal::forget(std::uint64_t client) {
  if (!writer_) return;
  Entry entry;
  entry.kind = Entry::Kind::kForget;
  entry.client = client;
  writer_->append(entry);
}

void RowsJournal::rows(std::uint32_t table, const RowTable::Block& block, std::uint64_t at) {
  if (!writer_) return;
  const auto payload = rows_payload(block, 0, block.keys.size());
  Entry rows = entry(Entry::Kind::kRows, table, block.keys.size(), payload);
  rows.now = at;
  rows.client = block.is_candidates ? 1 : 0;
  writer_->append(rows);
}

void RowsJournal::drop(std::size_t table, std::span<const std::uint64_t> keys) {
  if (writer_) writer_->append(entry(Entry::Kind::kDrop, table, keys.size(), std::as_bytes(keys)));
}

void RowsJournal::take(std::uint64_t route, const std::vector<std::uint16_t>& buckets,
                       bool with_rows) {
  append_buckets(Entry::Kind::kTake, route, buckets, with_rows);
}

void RowsJournal::give(std::uint64_t route, const std::vector<std::uint16_t>& buckets,
                       bool drops_rows) {
  append_buckets(Entry::Kind::kGive, route, buckets, drops_rows);
}

void RowsJournal::append_buckets(Entry::Kind kind, std::uint64_t route,
                                 const std::vector<std::uint16_t>& buckets, bool flag) {
  if (!writer_) return;
  Entry moved = entry(kind, 0, buckets.size(), std::as_bytes(std::span(buckets)));
  moved.client = flag ? 1 : 0;
  moved.sequence = route;
  writer_->append(moved);
}

Task<Status> RowsJournal::written(TimePoint limit, RowsSession* client) {
  if (!writer_) co_return Status();
  const std::uint64_t number = writer_->asked();
  while (!writer_->is_done(number)) {
    const TimePoint look = std::min(limit, clock_.now() + std::chrono::seconds(1));
    const bool goes_on = co_await moved_->wait(look);
    if (!goes_on && clock_.now() < look)
      co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (!goes_on && clock_.now() >= limit)
      co_return Error(ErrorCode::kDeadlineExceeded,
                      "the journal of the tables is not on the disk: " + writer_->state().trouble);
    if (client != nullptr) CENTROID_CO_TRY(co_await client->report_wait(clock_.now()));
  }
  const RowsJournalWriter::State state = writer_->state();
  if (state.is_broken && state.is_abandoned)
    co_return Error(ErrorCode::kUnavailable,
                    "the server is stopping, and its journal cannot be written: " + state.trouble);
  co_return Status();
}

Task<Status> RowsJournal::on_disk(TimePoint limit) {
  if (!writer_) co_return Status();
  writer_->sync();
  co_return co_await written(limit, nullptr);
}

}  // namespace centroid::server
