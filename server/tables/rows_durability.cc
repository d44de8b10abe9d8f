#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "server/tables/rows_service.h"

/// The journal of the tables: what is written of each request, and how a restarted server takes it
/// up again. Entries are requests in the order in which they were applied, with the time they were
/// applied at, so a replay makes the same calls on the same rows.
namespace centroid::server {

using rows_journal::Entry;
using rows_journal::Reader;

namespace fs = std::filesystem;

Status RowsService::start_journal(const Executor& executor, RowsJournalWriter::Options options) {
  if (!has_tables()) return {};
  journal_moved_ = std::make_shared<Event>(executor);
  options.on_progress = [executor, moved = journal_moved_] {
    boost::asio::post(executor, [moved] { moved->notify_all(); });
  };
  for (const RowTable& table : tables_->tables) options.tables.push_back(to_string(table.spec()));
  const std::string folder = options.folder.string();
  const auto sync = options.sync_every;
  CENTROID_ASSIGN(journal_, RowsJournalWriter::start(std::move(options), next_position_));
  journal_->prune(first_segment_);
  log::info("rows_journal.begun",
            {{"dir", folder}, {"segment", next_position_.segment}, {"sync_ms", sync.count()}});
  return {};
}

void RowsService::checkpoint_written(std::uint64_t journal) {
  if (journal_) journal_->prune(journal);
}

bool RowsService::journal_wants_checkpoint(std::uint64_t bytes) const {
  if (!journal_) return false;
  const RowsJournalWriter::State state = journal_->state();
  return state.is_broken || (bytes != 0 && state.bytes > bytes);
}

void RowsService::give_up() {
  if (journal_) journal_->give_up();
}

std::optional<RowsJournalWriter::State> RowsService::journal() const {
  if (!journal_) return std::nullopt;
  return journal_->state();
}

/// Where the use of a row decides whether it stays. Else a pull leaves no trace that a push could
/// meet.
bool RowsService::journals_pulls(const RowTable& table) const {
  return journal_ != nullptr && (table.spec().max_age != 0 || table.spec().max_bytes != 0);
}

void RowsService::journal_push(const proto::RowsPush& head, const Client& client) {
  Entry entry;
  entry.kind = Entry::Kind::kPush;
  entry.table = static_cast<std::uint16_t>(head.table);
  entry.rows = head.rows;
  entry.now = now();
  entry.client = client.id;
  entry.sequence = head.sequence;
  entry.step = head.step;
  entry.data = client.in;
  journal_->append(entry);
}

void RowsService::journal_pull(const proto::RowsPull& head, const Client& client) {
  Entry entry;
  entry.kind = Entry::Kind::kPull;
  entry.table = static_cast<std::uint16_t>(head.table);
  entry.rows = head.rows;
  entry.now = now();
  entry.data = client.in;
  journal_->append(entry);
}

void RowsService::journal_forget(std::uint64_t client) {
  if (!journal_) return;
  Entry entry;
  entry.kind = Entry::Kind::kForget;
  entry.client = client;
  journal_->append(entry);
}

/// Wait until all that was asked for so far is written.
Task<Status> RowsService::journalled(TimePoint limit, Client* client) {
  const std::uint64_t number = journal_->asked();
  while (!journal_->is_done(number)) {
    const TimePoint look = std::min(limit, clock_.now() + std::chrono::seconds(1));
    const bool goes_on = co_await journal_moved_->wait(look);
    if (!goes_on && clock_.now() < look)
      co_return Error(ErrorCode::kCancelled, "the server is stopping");
    if (!goes_on && clock_.now() >= limit)
      co_return Error(ErrorCode::kDeadlineExceeded,
                      "the journal of the tables is not on the disk: " + journal_->state().trouble);
    if (client != nullptr) CENTROID_CO_TRY(co_await tell(*client, clock_.now()));
  }
  const RowsJournalWriter::State state = journal_->state();
  if (state.is_broken && state.gave_up)
    co_return Error(ErrorCode::kUnavailable,
                    "the server is stopping, and its journal cannot be written: " + state.trouble);
  co_return Status();
}

/// The tables of a segment, by its numbers, with the settings of then.
Result<std::vector<std::size_t>> RowsService::adopt(const std::vector<std::string>& tables) {
  std::vector<std::size_t> places;
  for (const std::string& text : tables) {
    CENTROID_ASSIGN(auto specs, parse_tables(text));
    RowSpec& then = specs.at(0);
    const auto found = std::ranges::find_if(
        tables_->tables, [&](const RowTable& table) { return table.spec().name == then.name; });
    if (found == tables_->tables.end())
      return Error(ErrorCode::kFailedPrecondition,
                   "it has pushes to a table '" + then.name +
                       "', which the setting `tables` has not: name it there as it was, so that "
                       "its rows are not lost");
    if (!describes_same_rows(then, found->spec()))
      return Error(ErrorCode::kFailedPrecondition,
                   "table '" + then.name + "' was " + to_string(then) +
                       ", the setting `tables` says " + to_string(found->spec()) +
                       ": its rows depend on dim, optimizer, init and seed");
    found->change(std::move(then));
    places.push_back(static_cast<std::size_t>(found - tables_->tables.begin()));
  }
  return places;
}

Status RowsService::replay(const Entry& entry, const std::vector<std::size_t>& tables) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kDataLoss, "push " + std::to_string(entry.sequence) + " of client " +
                                           std::to_string(entry.client) + ": " + why);
  };
  if (entry.kind == Entry::Kind::kForget) {
    windows_.forget(entry.client);
    return {};
  }
  if (entry.kind >= Entry::Kind::kRows) return replay_move(entry, tables);
  if (entry.table >= tables.size()) return refuse("the segment has no table of its number");
  RowTable& table = tables_->tables[tables[entry.table]];
  const bool is_push = entry.kind == Entry::Kind::kPush;
  const std::size_t keys_bytes = entry.rows * sizeof(std::uint64_t);
  const std::size_t floats = std::size_t{entry.rows} * table.spec().dim;
  if (entry.data.size() != keys_bytes + (is_push ? floats * sizeof(float) : 0))
    return refuse("its size does not fit the dim of table '" + table.spec().name + "'");
  clock_at_start_ = std::max(clock_at_start_, entry.now);
  const auto* const first = reinterpret_cast<const std::uint64_t*>(entry.data.data());
  const std::span keys(first, entry.rows);
  if (!is_push) {
    std::vector<float> out(floats);
    table.pull(keys, out, entry.now);
    return {};
  }
  CENTROID_ASSIGN(const bool is_new, windows_.is_new(entry.client, entry.sequence));
  if (!is_new) return refuse("it is there twice");
  const std::span gradients(reinterpret_cast<const float*>(first + entry.rows), floats);
  CENTROID_TRY(table.push(keys, gradients, entry.now, entry.step));
  windows_.mark(entry.client, entry.sequence);
  table.sweep(2 * keys.size(), entry.now);
  ++changes_;
  return {};
}

Status RowsService::replay(const fs::path& folder, std::string& run_id) {
  Reader reader(folder, first_segment_);
  const TimePoint begin = clock_.now();
  const std::uint64_t before = changes_;
  std::uint64_t gap = 0;  // a segment that follows one
  const std::lock_guard lock(tables_->mutex);
  std::vector<RowSpec> specs;
  for (const RowTable& table : tables_->tables) specs.push_back(table.spec());
  std::vector<std::size_t> places;
  claims_.assign(proto::kRowBuckets, 0);
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket)
    if (route_.owners[bucket] == self_) claims_[bucket] = route_.version;
  if (!reader.segments().empty() && reader.segments().front().number != first_segment_)
    return Error(ErrorCode::kDataLoss,
                 "journal " + folder.string() + ": segment " +
                     rows_journal::segment_name(first_segment_) + ", which the tables of " +
                     (restored_from_.empty() ? "no checkpoint" : restored_from_) +
                     " need next, is missing: the pushes between are lost. Move the rows-*.log "
                     "away to go on without those behind");
  for (;;) {
    CENTROID_ASSIGN(const Reader::Found found, reader.next());
    if (found == Reader::Found::kEnd) break;
    const auto failed = [&](const Status& status) {
      return status.error().with_context("journal " + folder.string() + ", segment " +
                                         std::to_string(reader.segment()));
    };
    if (found == Reader::Found::kBatch) {
      for (const Entry& entry : reader.entries())
        if (const Status done = replay(entry, places); !done.ok()) return failed(done);
      continue;
    }
    const rows_journal::Base& base = reader.base();
    if (run_id.empty()) run_id = base.run_id;
    if (base.run_id != run_id)
      return failed(Error(ErrorCode::kFailedPrecondition,
                          "it belongs to run '" + base.run_id + "', this one is '" + run_id +
                              "': move the journal away to go on without it"));
    if (base.follows_gap && reader.segment() != first_segment_) {
      gap = reader.segment();
      break;
    }
    auto adopted = adopt(base.tables);
    if (!adopted.ok()) return failed(adopted.error());
    places = std::move(adopted).value();
  }
  moves_ = {};  // rows that came and were not taken
  for (std::size_t i = 0; i < specs.size(); ++i) tables_->tables[i].change(std::move(specs[i]));
  if (gap != 0) {
    log::error("rows_journal.gap",
               {{"segment", gap},
                {"why",
                 "the journal could not be written then (journal.full), and no checkpoint came "
                 "behind it: later pushes are lost"}});
    for (const LogSegment& segment : reader.segments())
      if (segment.number >= gap) CENTROID_TRY(file::remove(segment.path));
  }
  if (!reader.torn().empty())
    log::warn("rows_journal.tail_cut",
              {{"why", reader.torn()}, {"action", "nobody was told of a push there"}});
  CENTROID_TRY(reader.cut_tail());
  fault::point("rows_journal.replayed");
  next_position_.segment = first_segment_;
  for (const LogSegment& there : rows_journal::segments_of(folder))
    next_position_.segment = std::max(next_position_.segment, there.number + 1);
  next_position_.batches = reader.batches();
  if (reader.segments().empty()) return {};
  for (const PushWindows::Entry& entry : windows_.entries()) gone_[entry.client] = clock_.now();
  if (restored_from_.empty()) restored_from_ = "the journal";
  for (std::size_t i = 0; i < probes_.size(); ++i) {
    probes_[i].told = tables_->tables[i].counters();  // the metrics count what this process did
    probes_[i].tell(tables_->tables[i]);
  }
  const double elapsed = std::chrono::duration<double>(clock_.now() - begin).count();
  log::info("rows_journal.replayed",
            {{"pushes", changes_ - before}, {"seconds", elapsed}, {"dir", folder.string()}});
  return {};
}

}  // namespace centroid::server
