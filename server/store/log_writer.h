#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/thread.h"
#include "common/storage/file.h"

namespace centroid::server {

/// Common to the writers of the journals of rounds and of rows: a thread that writes and one that
/// syncs, repeated attempts, the files. The writers determine content and order.
class LogWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    /// Between two fdatasync; 0: a written record is on the disk.
    std::chrono::milliseconds sync_every{1000};
    bool waits = true;                  ///< a failing write is repeated until it succeeds
    std::function<void()> on_progress;  ///< a record is done, none is left, or a write fails
    std::function<void(double seconds)> on_sync;
    /// Called before each write.
    /// fails  unavailable: not now, the write waits; else never again.
    std::function<Status()> may_write;
  };
  struct State {
    std::string trouble;  ///< why the present write fails, or the journal is broken; else empty
    bool is_broken = false, is_abandoned = false;
    std::uint64_t bytes = 0;       ///< of all segments
    std::uint64_t written = 0;     ///< bytes since the start
    std::size_t queued_bytes = 0;  ///< of content that is stored until it is written
    std::uint64_t durable = 0;     ///< number of the content that survives a power loss
    double unsynced_seconds = 0;   ///< age of the oldest content that would not
  };
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  State state() const;
  /// The number of the last call, and whether that number is done: written, or dropped by a broken
  /// journal.
  std::uint64_t asked() const;
  bool is_done(std::uint64_t number) const;
  /// Stop repeating a failing write: the journal is broken then.
  void give_up();

 protected:
  /// Before the first file of a journal.
  static Status make_folder(const std::filesystem::path& folder);
  /// Names for the log and for tests.
  struct Names {
    std::string_view goes_on, waits, waits_action, broken, broken_action, sync_failed, prune_failed,
        removed;
  };
  struct Part {
    std::filesystem::path path;
    std::uint64_t first = 0, last = 0;  ///< numbers of its content
    std::uint64_t bytes = 0;
  };

  LogWriter(Options options, const Names& names) : log_(std::move(options)), names_(names) {}
  ~LogWriter() = default;

  /// After the first file exists; they write to the storage of the calling thread. A writer's
  /// destructor calls `join` last.
  void start_threads();
  void join();
  /// On the writer's thread, until `stops_` and nothing is left.
  virtual void run() = 0;
  /// Nothing can be written any more. Under the lock.
  virtual void break_off() {}
  void set_broken(const Error& why);

  /// Until it succeeds or is abandoned.
  template <class Attempt>
  Status persist(Attempt attempt) {
    for (;;) {
      Status allowed = log_.may_write ? log_.may_write() : Status();
      const bool is_held = !allowed.ok() && allowed.error().code() == ErrorCode::kUnavailable;
      Status status = allowed.ok() ? attempt() : std::move(allowed);
      if (may_end(status, is_held)) return status;
    }
  }
  /// Sync everything up to `sound_end_`. Callable from both threads.
  Status sync_now();
  /// Remove files without content from number `first` on; the present one stays.
  void prune_now(std::uint64_t first);
  /// `created` becomes the present file, complete and synced. Under the lock.
  void take_file(file::Descriptor created, Part part);
  void tell() const;
  void log_broken(const Error& why) const;

  const Options log_;
  mutable Mutex mutex_;  // guards all below
  Condition changed_;
  bool stops_ = false, is_abandoned_ = false, is_broken_ = false;
  std::string trouble_;
  std::uint64_t written_ = 0;  ///< bytes since the start
  std::uint64_t asked_ = 0, done_ = 0;
  std::size_t queued_bytes_ = 0;
  std::deque<Part> parts_;
  std::uint64_t sound_end_ = 0, durable_end_ = 0;    // of the present file
  std::uint64_t sound_mark_ = 0, durable_mark_ = 0;  // numbers of the content up to there
  TimePoint unsynced_since_ = TimePoint::max();
  std::shared_ptr<file::Descriptor> file_;
  std::uint64_t end_ = 0;  // of the present file; the writer's thread only

 private:
  bool may_end(const Status& status, bool is_held);
  void run_sync();

  const Names names_;
  Thread writer_, syncer_;
};

}  // namespace centroid::server
