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

/// The journal of the tables: requests in the order in which they were applied, with the time they
/// were applied at, so that a replay makes the same calls on the same rows. Until `start` nothing
/// is written.
///
/// thread  the service's
class RowsJournal {
 public:
  RowsJournal(const TableStore& store, const Clock& clock) : store_(store), clock_(clock) {}

  /// Pushes are written before they are answered, from now on; without tables nothing is.
  /// `executor`: the service's; the thread of `files` opens it. Not set in `options`: tables,
  /// on_progress.
  Task<Status> start(Executor executor, Executor files, RowsJournalWriter::Options options);

  // where it stands
  /// The first segment behind the restored checkpoint.
  std::uint64_t first_segment() const { return first_segment_; }
  void set_first_segment(std::uint64_t number);
  /// Where `start` begins.
  void set_next(RowsJournalWriter::Position position) { next_ = position; }
  /// The segment of what follows. With a writer it is a new one.
  std::uint64_t rotate();
  /// A checkpoint that needs no segment below is on the disk.
  void prune(std::uint64_t first);
  /// Its segments have more than so many bytes, or it is broken: only a checkpoint helps.
  bool requires_checkpoint(std::uint64_t bytes) const;
  /// The server stops: what cannot be written is not waited for any more.
  void give_up();
  std::optional<RowsJournalWriter::State> state() const;

  // entries; without a writer nothing happens
  void push(const proto::RowsPush& head, std::uint64_t client, Bytes data);
  /// Only where the use of a row decides whether it stays.
  void pull(const proto::RowsPull& head, Bytes data);
  void forget(std::uint64_t client);
  void rows(std::uint32_t table, const RowTable::Block& block, std::uint64_t at);
  void drop(std::size_t table, std::span<const std::uint64_t> keys);
  void take(std::uint64_t route, const std::vector<std::uint16_t>& buckets, bool with_rows);
  void give(std::uint64_t route, const std::vector<std::uint16_t>& buckets, bool drops_rows);

  bool has_room() const { return !writer_ || writer_->has_room(); }
  /// Wait until all that was appended so far is written. `client`: is told about a long wait
  /// fails  deadline_exceeded; unavailable: the server stops
  Task<Status> written(TimePoint limit, RowsSession* client);
  /// What was done so far is written, and on the disk.
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
  std::unique_ptr<RowsJournalWriter> writer_;  ///< none: pushes are in no journal
};

}  // namespace centroid::server
