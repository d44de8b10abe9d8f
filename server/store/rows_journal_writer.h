#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/rows_journal.h"
#include "server/store/log_writer.h"

namespace centroid::server {

/// Writes the journal of tables of sparse rows from a thread of its own, in the order of the calls;
/// the caller never waits. Group commit: entries during a write (with `sync_every` 0: a write and
/// its fdatasync) go into the next.
///
/// thread  every method from any one thread; callbacks run on the writer's threads
/// memory  unwritten entries: a caller without room (`has_room`) must wait
/// failure a failing write is repeated until it succeeds (`Options::waits`), or the journal is
///         broken: then everything is dropped until `rotate`
class RowsJournalWriter final : private LogWriter {
 public:
  /// Unwritten entries, and beyond them the last of every client.
  static constexpr std::size_t kQueueBytes = std::size_t{32} << 20;

  struct Options : LogWriter::Options {
    std::string run_id;
    std::vector<std::string> tables;  ///< as in the setting
  };
  /// The start of a journal: there is no segment with this number or a higher one.
  struct Position {
    std::uint64_t segment = 1, batches = 0;
  };
  /// Create the folder and the first segment. Existing segments stay until `prune`.
  static Result<std::unique_ptr<RowsJournalWriter>> start(Options options, Position position);
  /// Writes the pending entries, if it can at once, and syncs.
  ~RowsJournalWriter();

  /// Once done, no kill of the process loses it. Returns the number for `is_done`.
  std::uint64_t append(const rows_journal::Entry& entry);
  /// Sync all entries so far, whatever `sync_every` is.
  void sync();
  using LogWriter::asked;
  using LogWriter::is_done;
  bool has_room() const;
  /// Continue in a new segment and return its number: a checkpoint of the present state needs no
  /// earlier one. Repairs a broken journal.
  std::uint64_t rotate();
  /// A checkpoint that needs no segment below `first` is on the disk.
  void prune(std::uint64_t first);
  using LogWriter::give_up;
  using LogWriter::State;
  using LogWriter::state;

 private:
  struct Batch {
    std::vector<std::byte> bytes;  ///< entries
    std::uint64_t last = 0;        ///< number of its last entry
    std::uint64_t segment = 0;     ///< it begins the segment of this number; 0: none
    bool follows_gap = false;
    bool syncs = false;
  };
  RowsJournalWriter(Options options, Position position);
  void run() override;
  void break_off() override;
  Status write(std::vector<Batch>& batches);
  Status write_batch(const Batch& batch);
  Status open_segment(std::uint64_t number, bool follows_gap);

  const std::string run_id_;
  const std::vector<std::string> tables_;
  std::deque<Batch> batches_;                  // under the lock, as the next
  std::vector<std::vector<std::byte>> spare_;  ///< memory of batches
  std::uint64_t prune_below_ = 0;
  std::uint64_t segment_;          ///< of the next entry
  bool has_entries_ = false;       ///< in this segment, or dropped
  std::uint64_t batches_written_;  // the writer's thread only
};

}  // namespace centroid::server
