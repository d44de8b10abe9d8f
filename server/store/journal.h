#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/async/task_group.h"
#include "server/store/journal_writer.h"
#include "server/store/rows_journal_writer.h"

namespace centroid::server {

/// Disk errors that may pass: it is full, or a part of it is unavailable.
inline bool is_of_disk(const Error& why) {
  return why.code() == ErrorCode::kResourceExhausted || why.code() == ErrorCode::kUnavailable ||
         why.code() == ErrorCode::kInternal;
}

/// The journal for rounds: the writer, and waits for it on the service's executor. No effect before
/// `start`. One thread.
class Journal {
 public:
  explicit Journal(Executor executor);

  /// A thread of `files` opens it.
  Task<Status> start(Executor files, JournalWriter::Options options, journal::Base base,
                     journal::Route route = {});
  /// Write the pending records, and close it; the callers' memory is free when this returns. A
  /// thread of `files` waits for the disk.
  Task<void> stop(Executor files);
  bool is_on() const { return writer_ != nullptr; }

  /// End the present attempt, if any, without a commit; later chunks are of another. Returns when
  /// the memory of its chunks is not read any more. `base`: the present state.
  Task<void> begin_attempt(journal::Base base);
  void begin(Round round, std::uint32_t attempt);
  void chunk(ChunkId chunk, journal::Form form, Bytes memory);
  /// The new placement of the chunks; between two rounds. Returns when the memory of the last
  /// attempt's chunks is not read any more.
  Task<void> route(journal::Route route);
  /// Drop the present attempt, and stop writing. As `begin_attempt`.
  Task<void> drop_attempt();
  /// For memory that changes before the round's end. Needs room.
  void chunk_copy(ChunkId chunk, journal::Form form, Bytes memory);
  /// For more copies; `on_progress` reports it.
  bool has_room() const { return !writer_ || writer_->has_room(); }
  /// Until there is room, or the caller is cancelled.
  Task<void> room();
  /// A record was written, or never will be. Before `start`; called on the executor
  void on_progress(std::function<void()> callback) { *callback_ = std::move(callback); }
  /// All chunks so far are written, their memory is free.
  Task<void> drained();
  std::uint64_t end_round(journal::Kind kind, journal::Commit commit);
  /// The end is written (or the journal is broken, which is reported elsewhere), or the caller is
  /// cancelled.
  Task<void> done(std::uint64_t number);

  /// A checkpoint of the state after `round` has begun: a new segment follows it.
  void checkpoint_begins(Round round);
  /// Begin a new segment with the next attempt: the terms of a replay have changed.
  void begin_segment_next() {
    rotates_ = true;
    base_.reset();
  }
  void checkpoint_written(Round round);
  /// The server stops: failing writes are not awaited any more.
  void give_up();
  /// It is broken, or goes on behind a gap: a checkpoint is needed, at once and every minute.
  bool requires_checkpoint(TimePoint now);
  JournalWriter::State state() const;
  /// Together with that of tables of sparse rows, if there is one.
  JournalWriter::State state(const std::optional<RowsJournalWriter::State>& rows) const;

 private:
  void drop();
  void begin_segment();

  const Executor executor_;
  std::shared_ptr<Event> moved_;
  std::shared_ptr<std::function<void()>> callback_ = std::make_shared<std::function<void()>>();
  Round round_;
  std::uint32_t attempt_ = 0;
  bool accepts_ = false, has_chunks_ = false, rotates_ = false;
  TimePoint repairs_at_{};             ///< not before
  std::optional<journal::Base> base_;  ///< of the attempt, until its end is written
  std::optional<Round> gap_;           ///< the journal goes on behind a checkpoint to be written
  Round rotates_at_;
  std::unique_ptr<JournalWriter> writer_;
};

}  // namespace centroid::server
