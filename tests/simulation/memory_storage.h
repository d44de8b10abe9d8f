#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "common/base/random.h"
#include "common/storage/storage.h"
#include "tests/simulation/disk_state.h"
#include "tests/support/faulty_storage.h"

namespace centroid::test {

/// A disk in memory that simulated processes share, each through a MemoryStorage. disk_state.h
/// describes the effect of a power cut.
///
/// thread   any
class MemoryDisk {
 public:
  /// `now_ns`: as DiskState has it
  explicit MemoryDisk(std::function<std::int64_t()> now_ns = {}) : state_(std::move(now_ns)) {}

  void set_capacity(std::uint64_t bytes);  ///< for all files together; beyond it ENOSPC
  std::uint64_t used() const;
  std::uint64_t digest() const;  ///< of all names, modes and contents
  /// Cut the power and restore it. Detaches every process that uses the disk.
  void crash(CounterRng& rng);

 private:
  friend class MemoryStorage;
  struct View;
  class OpenFile;

  mutable std::mutex mutex_;  // guards all below
  DiskState state_;
  std::set<std::pair<std::uint64_t, View*>> views_;  ///< by number: no order by address
  std::uint64_t next_view_ = 1;
};

/// The view of one simulated process. Must outlive the process's open files.
class MemoryStorage final : public storage::Storage {
 public:
  explicit MemoryStorage(std::shared_ptr<MemoryDisk> disk);
  ~MemoryStorage() override;

  /// Called before each operation, as in FaultyStorage, until the process is detached. It may also
  /// wait, detach the process or cut the power. A "sync" that fails drops the unsynced bytes.
  void set_hook(FaultHook hook);
  /// SIGKILL: written bytes stay visible to others and the locks are released. Later operations of
  /// this process, also on its open files, change a private copy.
  void detach();
  bool is_detached() const;

  storage::Outcome<std::unique_ptr<storage::File>> open(const std::filesystem::path& path,
                                                        storage::Open how, unsigned mode) override;
  storage::Outcome<storage::Attributes> attributes(const std::filesystem::path& path) override;
  storage::Outcome<std::vector<storage::Entry>> list(const std::filesystem::path& path) override;
  std::error_code create_directory(const std::filesystem::path& path, unsigned mode) override;
  std::error_code rename(const std::filesystem::path& from,
                         const std::filesystem::path& to) override;
  std::error_code remove(const std::filesystem::path& path) override;
  std::error_code remove_directory(const std::filesystem::path& path) override;
  std::error_code sync_directory(const std::filesystem::path& path) override;
  storage::Outcome<storage::Space> space(const std::filesystem::path& path) override;

 private:
  const std::shared_ptr<MemoryDisk::View> view_;
};

}  // namespace centroid::test
