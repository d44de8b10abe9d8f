#pragma once

#include <memory>
#include <optional>

#include "common/async/task_group.h"
#include "server/service/probe.h"
#include "server/store/journal_writer.h"
#include "server/store/rows_journal_writer.h"

namespace centroid::server {

/// The journal as the round loop sees it: the writer, and waiting for it on the service's executor.
/// Does nothing before `start`.
class Journal {
 public:
  Journal(Executor executor, const Probe& probe);

  Status start(JournalWriter::Options options, journal::Base base);
  bool is_on() const { return writer_ != nullptr; }

  /// The present attempt is over without a commit, if there was one; what follows is of another.
  /// Returns when the memory of its chunks is no longer read. `base`: the state now.
  Task<void> begin_attempt(journal::Base base);
  void begin(Round round, std::uint32_t attempt);
  void chunk(ChunkId chunk, journal::Form form, Bytes memory);
  /// The memory will change before the round's end.
  void chunk_copy(ChunkId chunk, journal::Form form, Bytes memory);
  /// All chunks so far are written, their memory is free.
  Task<void> drained();
  std::uint64_t end_round(journal::Kind kind, journal::Commit commit);
  /// The end is written (or the journal is broken, which is told elsewhere).
  Task<void> done(std::uint64_t number);

  /// A checkpoint of the state after `round` has begun: segments follow it.
  void checkpoint_begins(Round round);
  void checkpoint_written(Round round);
  /// The server stops: what cannot be written is not waited for any more.
  void give_up();
  /// True once after it broke: a checkpoint is needed.
  bool wants_checkpoint();
  JournalWriter::State state() const;
  /// `rows`: the journal of tables of sparse rows, if there is one; the metrics are of both.
  void refresh_metrics(const std::optional<RowsJournalWriter::State>& rows) const;

 private:
  const Executor executor_;
  const Probe& probe_;
  std::shared_ptr<Event> moved_;
  Round round_;
  std::uint32_t attempt_ = 0;
  bool accepts_ = false, has_chunks_ = false, rotates_ = false, was_broken_ = false;
  Round rotates_at_;
  std::unique_ptr<JournalWriter> writer_;
};

}  // namespace centroid::server
