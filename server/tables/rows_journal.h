#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/async/task_group.h"
#include "common/checkpoint/rows_journal.h"
#include "common/proto/rows.h"
#include "server/store/rows_journal_writer.h"
#include "server/tables/rows_sessions.h"
#include "server/tables/table_store.h"

namespace centroid::server {

/// The journal of the tables: requests in the order and with the time of their application, so that
/// a replay makes the same calls on the same rows. Writes nothing before `start`.
///
/// thread  the service's
class RowsJournal {
 public:
  RowsJournal(const TableStore& store, const Clock& clock) : store_(store), clock_(clock) {}

  /// From now on pushes are written before they are answered. Does nothing without tables.
  /// `executor`: the service's; a thread of `files` opens the journal. `start` sets the tables and
  /// on_progress of `options`.
  Task<Status> start(Executor executor, Executor files, RowsJournalWriter::Options options);

  // position
  /// The first segment after the restored checkpoint.
  std::uint64_t first_segment() const { return first_segment_; }
  void set_first_segment(std::uint64_t number);
  /// Set the position at which `start` begins.
  void set_next(RowsJournalWriter::Position position) { next_ = position; }
  /// Number of the segment of later entries. With a writer a new segment begins.
  std::uint64_t rotate();
  /// A checkpoint that needs no segment below `first` is on the disk.
  void prune(std::uint64_t first);
  /// Whether the segments exceed `bytes`, or the journal is broken: then a checkpoint is needed.
  bool requires_checkpoint(std::uint64_t bytes) const;
  /// The server stops: failing writes are not awaited any more.
  void give_up();
  std::optional<RowsJournalWriter::State> state() const;

  // entries; no effect without a writer
  void push(const proto::RowsPush& head, std::uint64_t client, Bytes data);
  /// Written only if the use of rows affects eviction.
  void pull(const proto::RowsPull& head, Bytes data);
  void forget(std::uint64_t client);
  void rows(std::uint32_t table, const RowTable::Block& block, std::uint64_t at);
  void drop(std::size_t table, std::span<const std::uint64_t> keys);
  void take(std::uint64_t route, const std::vector<std::uint16_t>& buckets, bool with_rows);
  void give(std::uint64_t route, const std::vector<std::uint16_t>& buckets, bool drops_rows);

  bool has_room() const { return !writer_ || writer_->has_room(); }
  /// Wait until all entries so far are written. `client` is notified of a long wait
  /// fails  deadline_exceeded; unavailable: the server stops
  Task<Status> written(TimePoint limit, RowsSession* client);
  /// Wait until all entries so far are on the disk.
  /// fails  as `written`
  Task<Status> on_disk(TimePoint limit);

 private:
  rows_journal::Entry entry(rows_journal::Entry::Kind kind, std::size_t table, std::size_t rows,
                            Bytes data) const;
  void append_buckets(rows_journal::Entry::Kind kind, std::uint64_t route,
                      const std::vector<std::uint16_t>& buckets, bool flag);

  const TableStore& store_;
  const Clock& clock_;
  std::uint64_t first_segment_ = 1;
  RowsJournalWriter::Position next_;
  std::shared_ptr<Event> moved_;
  std::unique_ptr<RowsJournalWriter> writer_;  ///< none: pushes are not journalled
};

}  // namespace centroid::server
