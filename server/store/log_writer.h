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

/// What the writers of the journals of rounds and of rows have in common: a thread that writes and
/// one that syncs, attempts that are repeated, the files that there are. What is written, and in
/// which order, is theirs.
class LogWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    /// Between two fdatasync; 0: what is done is on the disk.
    std::chrono::milliseconds sync_every{1000};
    bool waits = true;                  ///< a write that fails is repeated until it succeeds
    std::function<void()> on_progress;  ///< something is done, nothing is left, or it fails
    std::function<void(double seconds)> on_sync;
    /// Asked before each write.
    /// fails  unavailable: not now, the write waits; else never again.
    std::function<Status()> may_write;
  };
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Stop repeating a write that fails: the journal is broken then.
  void give_up();

 protected:
  /// What the log and tests call it.
  struct Names {
    std::string_view goes_on, waits, waits_action, broken, broken_action, sync_failed, prune_failed,
        removed;
  };
  struct Part {
    std::filesystem::path path;
    std::uint64_t first = 0, last = 0;  ///< numbers of what is in it
    std::uint64_t bytes = 0;
  };

  LogWriter(Options options, const Names& names) : log_(std::move(options)), names_(names) {}
  ~LogWriter() = default;

  /// After the first file is there; they write to the storage of the thread that calls this. The
  /// last act of a writer's destructor is `join`.
  void start_threads();
  void join();
  /// On the writer's thread, until `stops_` and nothing is left.
  virtual void run() = 0;
  /// Nothing can be written any more. Not under the lock.
  virtual void break_off(const Error& why) = 0;

  /// Until it succeeds or is given up.
  template <class Attempt>
  Status persist(Attempt attempt) {
    for (;;) {
      Status allowed = log_.may_write ? log_.may_write() : Status();
      const bool is_held = !allowed.ok() && allowed.error().code() == ErrorCode::kUnavailable;
      Status status = allowed.ok() ? attempt() : std::move(allowed);
      if (may_end(status, is_held)) return status;
    }
  }
  /// All up to `sound_end_` goes to the disk. Callable from both threads.
  Status sync_now();
  /// Files without anything from number `first` on are removed; the present one stays.
  void prune_now(std::uint64_t first);
  /// `created` is the present file from here on, whole and on the disk. Under the lock.
  void take_file(file::Descriptor created, Part part);
  void tell() const;
  std::uint64_t bytes_of_parts() const;
  double unsynced_seconds() const;

  const Options log_;
  mutable Mutex mutex_;  // guards all below
  Condition changed_;
  bool stops_ = false, gives_up_ = false, is_broken_ = false;
  std::string trouble_;
  std::uint64_t written_ = 0;  ///< bytes since the start
  std::deque<Part> parts_;
  std::uint64_t sound_end_ = 0, durable_end_ = 0;    // of the present file
  std::uint64_t sound_mark_ = 0, durable_mark_ = 0;  // numbers of what ends there
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
