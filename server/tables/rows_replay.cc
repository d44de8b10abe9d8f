#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/rows_journal.h"
#include "common/proto/rows.h"
#include "common/storage/file.h"
#include "server/tables/row_blocks.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

namespace {

Error damaged_push(const rows_journal::Entry& entry, const std::string& why) {
  return Error(ErrorCode::kDataLoss, "push " + std::to_string(entry.sequence) + " of client " +
                                         std::to_string(entry.client) + ": " + why);
}

Error damaged_move(const rows_journal::Entry& entry, const std::string& why) {
  return Error(ErrorCode::kDataLoss,
               "rows that moved by route " + std::to_string(entry.sequence) + ": " + why);
}

/// The numbers in an entry's data, which are unaligned.
template <class T>
std::vector<T> numbers_in(const rows_journal::Entry& entry) {
  std::vector<T> numbers(entry.rows);
  if (!numbers.empty()) std::memcpy(numbers.data(), entry.data.data(), entry.data.size());
  return numbers;
}

/// One replay of a journal of tables.
///
/// thread  one; the tables are not used otherwise meanwhile
class RowsReplay {
 public:
  RowsReplay(RowsService& service, const Clock& clock, const std::filesystem::path& folder)
      : service_(service),
        store_(service.store()),
        moves_(service.moves()),
        journal_(service.journal()),
        clock_(clock),
        folder_(folder) {}

  /// As RowsService::replay.
  Status run(std::string& run_id);

 private:
  using Entry = rows_journal::Entry;
  using Reader = rows_journal::Reader;

  Status check_first(const Reader& reader) const;
  Status apply_all(Reader& reader, std::string& run_id);
  Status begin_segment(const Reader& reader, const std::string& run_id);
  Result<std::vector<std::size_t>> adopt(const std::vector<std::string>& tables);
  Status cut_off(Reader& reader);
  void publish();

  Status apply(const Entry& entry);
  Status apply_request(const Entry& entry);
  Status apply_rows(const Entry& entry);
  Status apply_buckets(const Entry& entry);

  RowsService& service_;
  TableStore& store_;
  BucketMoves& moves_;
  RowsJournal& journal_;
  const Clock& clock_;
  const std::filesystem::path& folder_;
  std::vector<std::size_t> places_;  ///< index of each of the segment's tables
  std::uint64_t gap_ = 0;            ///< number of a segment that follows a gap; 0: none
};

Status RowsReplay::run(std::string& run_id) {
  Reader reader(folder_, journal_.first_segment());
  const TimePoint begin = clock_.now();
  const std::uint64_t before = store_.changes();
  const std::lock_guard lock(store_.mutex());
  std::vector<RowSpec> specs;
  for (const RowTable& table : store_.tables()) specs.push_back(table.spec());
  moves_.begin_claims();
  CENTROID_TRY(check_first(reader));
  CENTROID_TRY(apply_all(reader, run_id));
  moves_.drop_staged();  // rows without a Take
  for (std::size_t i = 0; i < specs.size(); ++i) store_.table(i).change(std::move(specs[i]));
  CENTROID_TRY(cut_off(reader));
  RowsJournalWriter::Position next;
  next.segment = journal_.first_segment();
  CENTROID_ASSIGN(const auto there_are, rows_journal::segments_of(folder_));
  for (const LogSegment& there : there_are) next.segment = std::max(next.segment, there.number + 1);
  next.batches = reader.batches();
  journal_.set_next(next);
  if (reader.segments().empty()) return {};
  publish();
  const double elapsed = std::chrono::duration<double>(clock_.now() - begin).count();
  log::info(
      "rows_journal.replayed",
      {{"pushes", store_.changes() - before}, {"seconds", elapsed}, {"dir", folder_.string()}});
  return {};
}

Status RowsReplay::check_first(const Reader& reader) const {
  const std::uint64_t first = journal_.first_segment();
  if (reader.segments().empty() || reader.segments().front().number == first) return {};
  const std::string& from = store_.restored_from();
  return Error(ErrorCode::kDataLoss,
               "journal " + folder_.string() + ": segment " + rows_journal::segment_name(first) +
                   ", which the tables of " + (from.empty() ? "no checkpoint" : from) +
                   " need next, is missing: the pushes between are lost. Move the rows-*.log "
                   "away to go on without those behind");
}

Status RowsReplay::apply_all(Reader& reader, std::string& run_id) {
  for (;;) {
    CENTROID_ASSIGN(const Reader::Found found, reader.next());
    if (found == Reader::Found::kEnd) return {};
    const auto failed = [&](const Status& status) {
      return status.error().with_context("journal " + folder_.string() + ", segment " +
                                         std::to_string(reader.segment()));
    };
    if (found == Reader::Found::kBatch) {
      for (const Entry& entry : reader.entries())
        if (const Status done = apply(entry); !done.ok()) return failed(done);
      continue;
    }
    if (run_id.empty()) run_id = reader.base().run_id;
    if (const Status begun = begin_segment(reader, run_id); !begun.ok()) return failed(begun);
    if (gap_ != 0) return {};
  }
}

Status RowsReplay::begin_segment(const Reader& reader, const std::string& run_id) {
  const rows_journal::Base& base = reader.base();
  if (base.run_id != run_id)
    return Error(ErrorCode::kFailedPrecondition,
                 "it belongs to run '" + base.run_id + "', this one is '" + run_id +
                     "': move the journal away to go on without it");
  if (base.follows_gap && reader.segment() != journal_.first_segment()) {
    gap_ = reader.segment();
    return {};
  }
  CENTROID_ASSIGN(places_, adopt(base.tables));
  return {};
}

/// The tables of a segment, with its settings.
Result<std::vector<std::size_t>> RowsReplay::adopt(const std::vector<std::string>& tables) {
  std::vector<std::size_t> places;
  for (const std::string& text : tables) {
    CENTROID_ASSIGN(auto specs, parse_tables(text));
    RowSpec& then = specs.at(0);
    const auto number = store_.number_of(then.name);
    if (!number.ok())
      return Error(ErrorCode::kFailedPrecondition,
                   "it has pushes to a table '" + then.name +
                       "', which the setting `tables` has not: name it there as it was, so that "
                       "its rows are not lost");
    RowTable& table = store_.table(*number);
    if (!describes_same_rows(then, table.spec()))
      return Error(ErrorCode::kFailedPrecondition,
                   "table '" + then.name + "' was " + to_string(then) +
                       ", the setting `tables` says " + to_string(table.spec()) +
                       ": its rows depend on dim, optimizer, init and seed");
    table.change(std::move(then));
    places.push_back(*number);
  }
  return places;
}

/// Remove the journal after the last complete batch.
Status RowsReplay::cut_off(Reader& reader) {
  if (gap_ != 0) {
    log::error("rows_journal.gap_found",
               {{"segment", gap_},
                {"why",
                 "the journal could not be written then (journal.full), and no checkpoint came "
                 "behind it: later pushes are lost"}});
    for (const LogSegment& segment : reader.segments())
      if (segment.number >= gap_) CENTROID_TRY(file::remove(segment.path));
    return {};
  }
  if (!reader.torn().empty())
    log::warn("rows_journal.tail_cut",
              {{"why", reader.torn()}, {"action", "nobody was told of a push there"}});
  CENTROID_TRY(reader.cut_tail());
  fault::point("rows_journal.replayed");
  return {};
}

void RowsReplay::publish() {
  for (const PushWindows::Entry& entry : store_.windows().entries())
    service_.sessions().set_gone(entry.client);
  if (store_.restored_from().empty()) store_.set_restored_from("the journal");
  store_.skip_counters();  // metrics count only this process's work
  store_.update_probes();
}

Status RowsReplay::apply(const Entry& entry) {
  switch (entry.kind) {
    case Entry::Kind::kForget:
      store_.windows().forget(entry.client);
      return {};
    case Entry::Kind::kRows:
    case Entry::Kind::kDrop:
      return apply_rows(entry);
    case Entry::Kind::kTake:
    case Entry::Kind::kGive:
      return apply_buckets(entry);
    default:
      return apply_request(entry);
  }
}

/// Apply a push or a pull.
Status RowsReplay::apply_request(const Entry& entry) {
  if (entry.table >= places_.size())
    return damaged_push(entry, "the segment has no table of its number");
  RowTable& table = store_.table(places_[entry.table]);
  const bool is_push = entry.kind == Entry::Kind::kPush;
  const std::size_t keys_bytes = entry.rows * sizeof(std::uint64_t);
  const std::size_t floats = std::size_t{entry.rows} * table.spec().dim;
  if (entry.data.size() != keys_bytes + (is_push ? floats * sizeof(float) : 0))
    return damaged_push(entry,
                        "its size does not fit the dim of table '" + table.spec().name + "'");
  store_.begin_at(entry.now);
  const auto keys = keys_in(entry.data, entry.rows);
  if (!is_push) {
    std::vector<float> out(floats);
    table.pull(keys, out, entry.now);
    return {};
  }
  CENTROID_ASSIGN(const bool is_new, store_.windows().is_new(entry.client, entry.sequence));
  if (!is_new) return damaged_push(entry, "it is there twice");
  const std::span gradients(reinterpret_cast<const float*>(keys.data() + keys.size()), floats);
  CENTROID_TRY(table.push(keys, gradients, entry.now, entry.step));
  store_.windows().mark(entry.client, entry.sequence);
  table.sweep(2 * keys.size(), entry.now);
  store_.count_change();
  return {};
}

/// Apply rows that arrived from another server, before their Take, or that moved to one.
Status RowsReplay::apply_rows(const Entry& entry) {
  store_.begin_at(entry.now);
  if (entry.table >= places_.size())
    return damaged_move(entry, "the segment has no table of their number");
  const std::size_t number = places_[entry.table];
  RowTable& table = store_.table(number);
  if (entry.kind == Entry::Kind::kRows) {
    proto::RowsBlock head;
    head.table = static_cast<std::uint32_t>(number);
    head.is_waiting = entry.client != 0;
    head.rows = entry.rows;
    CENTROID_ASSIGN(auto block, rows_of(head, table.spec(), entry.data));
    moves_.stage(head.table, std::move(block));
    return {};
  }
  if (entry.data.size() != entry.rows * sizeof(std::uint64_t))
    return damaged_move(entry, "a Drop is cut short");
  table.drop(numbers_in<std::uint64_t>(entry));
  return {};
}

/// Apply a change of the owner of buckets.
Status RowsReplay::apply_buckets(const Entry& entry) {
  store_.begin_at(entry.now);
  if (entry.data.size() != entry.rows * sizeof(std::uint16_t))
    return damaged_move(entry, "its buckets are cut short");
  const auto buckets = numbers_in<std::uint16_t>(entry);
  for (const std::uint16_t bucket : buckets)
    if (bucket >= proto::kRowBuckets)
      return damaged_move(entry, "there is no bucket " + std::to_string(bucket));
  const bool takes = entry.kind == Entry::Kind::kTake;
  moves_.claim(buckets, takes ? entry.sequence : 0);
  if (!takes && entry.client != 0) store_.drop_buckets(buckets);
  if (takes && entry.client != 0) CENTROID_TRY(moves_.load_staged(entry.now));
  if (takes) moves_.drop_staged();
  store_.count_change();
  return {};
}

}  // namespace

Status RowsService::replay(const std::filesystem::path& folder, std::string& run_id) {
  RowsReplay replay(*this, clock_, folder);
  return replay.run(run_id);
}

}  // namespace centroid::server
