#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/async/task_group.h"
#include "server/store/journal_writer.h"
#include "server/store/rows_journal_writer.h"

namespace centroid::server {

/// Such errors of a disk may pass: it is full, or a part of it is away.
inline bool is_of_disk(const Error& why) {
  return why.code() == ErrorCode::kResourceExhausted || why.code() == ErrorCode::kDataLoss ||
         why.code() == ErrorCode::kInternal;
}

/// The journal as rounds see it: the writer, and waiting for it on the service's executor. Does
/// nothing before `start`. Of one thread.
class Journal {
 public:
  explicit Journal(Executor executor);

  /// The thread of `files` opens it.
  Task<Status> start(Executor files, JournalWriter::Options options, journal::Base base,
                     journal::Route route = {});
  /// Write what was asked for, and close it; memory is not read any more when this returns. The
  /// thread of `files` waits for the disk.
  Task<void> stop(Executor files);
  bool is_on() const { return writer_ != nullptr; }

  /// The present attempt is over without a commit, if there was one; what follows is of another.
  /// Returns when the memory of its chunks is no longer read. `base`: the state now.
  Task<void> begin_attempt(journal::Base base);
  void begin(Round round, std::uint32_t attempt);
  void chunk(ChunkId chunk, journal::Form form, Bytes memory);
  /// The chunks lie so from here on; between two rounds. Returns when the memory of the last
  /// attempt's chunks is no longer read.
  Task<void> route(journal::Route route);
  /// Nothing of the present attempt is kept, and nothing is being written. As `begin_attempt`.
  Task<void> drop_attempt();
  /// The memory will change before the round's end. Not without room.
  void chunk_copy(ChunkId chunk, journal::Form form, Bytes memory);
  /// For more copies; `on_progress` comes when there is again.
  bool has_room() const { return !writer_ || writer_->has_room(); }
  /// Until there is room, or the caller is cancelled.
  Task<void> room();
  /// Something is written, or will never be. Before `start`; called on the executor
  void on_progress(std::function<void()> told) { *told_ = std::move(told); }
  /// All chunks so far are written, their memory is free.
  Task<void> drained();
  std::uint64_t end_round(journal::Kind kind, journal::Commit commit);
  /// The end is written (or the journal is broken, which is told elsewhere), or the caller is
  /// cancelled.
  Task<void> done(std::uint64_t number);

  /// A checkpoint of the state after `round` has begun: segments follow it.
  void checkpoint_begins(Round round);
  /// The next attempt begins a segment of its own: what a replay needs to know has changed.
  void begin_anew() { rotates_ = true; }
  void checkpoint_written(Round round);
  /// The server stops: what cannot be written is not waited for any more.
  void give_up();
  /// True once after it broke: a checkpoint is needed.
  bool wants_checkpoint();
  JournalWriter::State state() const;
  /// Together with that of tables of sparse rows, if there is one.
  JournalWriter::State state(const std::optional<RowsJournalWriter::State>& rows) const;

 private:
  void drop();

  const Executor executor_;
  std::shared_ptr<Event> moved_;
  std::shared_ptr<std::function<void()>> told_ = std::make_shared<std::function<void()>>();
  Round round_;
  std::uint32_t attempt_ = 0;
  bool accepts_ = false, has_chunks_ = false, rotates_ = false, was_broken_ = false;
  Round rotates_at_;
  std::unique_ptr<JournalWriter> writer_;
};

}  // namespace centroid::server
