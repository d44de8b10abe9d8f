#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/checkpoint/file.h"
#include "common/checkpoint/journal_format.h"

namespace centroid::server {

/// Writes the journal of committed rounds from a thread of its own, in the order in which it is
/// asked to; the caller never waits.
///
/// thread  every verb from any one thread; callbacks run on the writer's threads
/// memory  none that grows with the model: `chunk_copy` keeps copies until they are written, and
/// with
///         64 MiB of them its caller waits for the disk after all
/// failure a write that fails is repeated until it succeeds (`Options::waits`: whoever waits for
///         `done` waits as long), or the journal is broken: then all is dropped until
///         `begin_segment`
class JournalWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    /// Between two fdatasync; 0: one for each commit, before it is done.
    std::chrono::milliseconds sync_every{1000};
    bool waits = true;
    std::function<void()> on_progress;  ///< a commit is done, nothing is left, or it fails
    std::function<void(double seconds)> on_sync;
    /// Asked before each write. fails unavailable: not now, the write waits; else never again.
    std::function<Status()> may_write;
    file::FaultHook faults;  ///< for tests: as ScopedFaultHook, on the writer's threads
  };
  /// Create the folder and its first segment. Segments of earlier rounds stay until `prune`; one
  /// that begins where this one does is replaced, later ones are removed: their rounds do not
  /// count. `route` stands behind the base of every segment, where it names servers.
  static Result<std::unique_ptr<JournalWriter>> start(Options options, journal::Base base,
                                                      journal::Route route = {});
  /// Writes what it was asked to, if it can at once, and syncs.
  ~JournalWriter();

  /// One chunk of an attempt. `memory` must stay unchanged until it is done or `drop_attempt`.
  void chunk(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form, Bytes memory);
  void chunk_copy(Round round, std::uint32_t attempt, ChunkId chunk, journal::Form form,
                  Bytes memory);
  /// The round is over with these chunks. Once done, no kill of the process loses it. Gives the
  /// number for `is_done`.
  std::uint64_t end_round(journal::Kind kind, Round round, std::uint32_t attempt,
                          journal::Commit commit);
  /// What was asked for so far / whether that number is done.
  std::uint64_t asked() const;
  bool is_done(std::uint64_t number) const;
  /// The attempt will not be committed: its chunks are not written any more, and what was is cut
  /// off. The caller's memory is free once `asked` is done.
  void drop_attempt();
  /// The chunks lie so from here on. Not within an attempt.
  void route(journal::Route route);
  /// What follows goes into a new segment, as with `start`. Mends a broken journal.
  void begin_segment(journal::Base base);
  /// A checkpoint with that many rounds is on the disk: older segments are not needed any more.
  void prune(Round checkpointed);
  /// Stop repeating a write that fails: the journal is broken then.
  void give_up();

  struct State {
    std::string trouble;  ///< why the present write fails, or the journal is broken; else empty
    bool is_broken = false;
    std::uint64_t bytes = 0;       ///< of all segments
    std::uint64_t written = 0;     ///< bytes since the start
    std::size_t queued_bytes = 0;  ///< in copies
    Round durable;                 ///< rounds that power loss does not take
    double unsynced_seconds = 0;   ///< age of the oldest commit that it would
  };
  State state() const;

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
  struct Part {
    std::filesystem::path path;
    Round base, last;  ///< rounds over before it and at its end
    std::uint64_t bytes = 0;
  };

  explicit JournalWriter(Options options) : options_(std::move(options)) {}
  std::uint64_t ask(Job job);
  void run();
  void run_sync();
  Status perform(Job& job);
  Status write_record(const journal::Head& head, Bytes payload);
  Status end_round_now(Job& job);
  Status write_route();
  Status remove_later(Round base);
  Status open_segment(const journal::Base& base);
  void prune_now(Round checkpointed);
  Status sync_now();
  /// Until it succeeds or is given up.
  template <class Attempt>
  Status persist(Attempt attempt);
  void tell();

  const Options options_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_, room_;
  std::deque<Job> jobs_;
  std::uint64_t asked_ = 0, done_ = 0;
  bool stops_ = false, gives_up_ = false, is_broken_ = false;
  std::string trouble_;
  std::size_t queued_bytes_ = 0;
  std::uint64_t written_ = 0;
  std::deque<Part> parts_;
  std::uint64_t committed_end_ = 0, durable_end_ = 0;  // of the present segment
  Round committed_, durable_;
  TimePoint unsynced_since_ = TimePoint::max();
  std::shared_ptr<file::Descriptor> file_;

  std::uint64_t end_ = 0;  // of the present segment; the writer's thread only, as the next
  journal::Route route_;
  std::thread writer_, syncer_;
};

}  // namespace centroid::server
