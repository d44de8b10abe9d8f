#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/checkpoint/journal_format.h"
#include "server/store/log_writer.h"

namespace centroid::server {

/// Writes the journal of committed rounds from a thread of its own, in the order of the calls; the
/// caller never waits.
///
/// thread  every method from any one thread; callbacks run on the writer's threads
/// memory  none that grows with the model: `chunk_copy` stores copies until they are written; with
///         64 MiB of them there is no room, and its caller must not add more
/// failure a failing write is repeated until it succeeds (`Options::waits`; a wait for `done` lasts
///         as long), or the journal is broken: then everything is dropped until `begin_segment`
class JournalWriter final : private LogWriter {
 public:
  using LogWriter::Options;
  /// Create the folder and its first segment. Segments of earlier rounds stay until `prune`. A
  /// segment that begins at the same round is replaced; later ones are removed, because their
  /// rounds do not count. `route` follows the base of every segment, if it names servers.
  static Result<std::unique_ptr<JournalWriter>> start(Options options, journal::Base base,
                                                      journal::Route route = {});
  /// Writes the pending records, if it can at once, and syncs.
  ~JournalWriter();

  /// One chunk of an attempt. `memory` must stay unchanged until it is done or `drop_attempt`.
  void chunk(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form, Bytes memory);
  void chunk_copy(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form,
                  Bytes memory);
  /// For more copies. `on_progress` reports it.
  bool has_room() const;
  /// The round is over with these chunks. Once done, no kill of the process loses it. Returns the
  /// number for `is_done`.
  std::uint64_t end_round(journal::Kind kind, Round round, std::uint32_t attempt,
                          journal::Commit commit);
  using LogWriter::asked;
  using LogWriter::is_done;
  /// The attempt will not be committed: its pending chunks are dropped, the written ones cut off.
  /// The caller's memory is free once `asked` is done.
  void drop_attempt();
  /// The new placement of the chunks. Not within an attempt.
  void route(journal::Route route);
  /// Continue in a new segment, as with `start`. Repairs a broken journal.
  void begin_segment(journal::Base base);
  /// A checkpoint with that many rounds is on the disk: older segments are not needed any more.
  void prune(Round checkpointed);
  using LogWriter::give_up;
  /// `queued_bytes`: in copies. `durable`: the last round that survives a power loss.
  using LogWriter::State;
  using LogWriter::state;

 private:
  struct Job {
    enum class What : std::uint8_t { kChunk, kEnd, kRoute, kRewind, kSegment, kPrune } what;
    journal::Head head;
    Bytes memory;
    std::vector<std::byte> owned;
    journal::Commit commit;
    journal::Base base;
    journal::Route route;
  };
  explicit JournalWriter(Options options);
  std::uint64_t ask(Job job);
  static Job chunk_of(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form);
  void run() override;
  Status perform(Job& job);
  Status write_record(const journal::Head& head, Bytes payload);
  Status end_round_now(Job& job);
  Status write_route();
  Status remove_later(Round base);
  Status open_segment(const journal::Base& base);

  std::deque<Job> jobs_;  // under the lock
  journal::Route route_;  // the writer's thread only, as the next
  std::string terms_;     // of the present segment
};

}  // namespace centroid::server
