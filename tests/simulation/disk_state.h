#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/storage/storage.h"

namespace centroid::test {

/// A disk and the page cache in front of it, as a value. The operations are those of storage.h;
/// open files are numbers.
///
/// content  written bytes are durable after the next sync of the file. Before that a power cut
///          loses all of them, some (all but a prefix, or any sectors of 512 bytes), or none
/// names    a creation, rename or removal is durable after the next sync of its folder. Before that
///          a power cut undoes all of them, all but a prefix, any set that respects the order of
///          changes to one name, or none. A rename is atomic
/// sync     a failed sync drops the bytes that it was to write; later syncs succeed without writing
///          them, as on Linux
/// replay   the same operations with the same generator give the same disk
///
/// thread   not safe; MemoryDisk locks
class DiskState {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;
  using Path = std::filesystem::path;
  template <class T>
  using Outcome = storage::Outcome<T>;

  /// `now_ns`: the clock of modification times, since 1970; none: a counter. Two changes never have
  /// the same time.
  explicit DiskState(std::function<std::int64_t()> now_ns);

  void set_capacity(std::uint64_t bytes) { capacity_ = bytes; }
  std::uint64_t used() const { return used_; }
  std::uint64_t digest() const;  ///< of all names, modes and contents
  /// Cut the power: `rng` decides which unsynced changes remain. All open files are closed.
  void crash(CounterRng& rng);

  Outcome<std::uint64_t> open(const Path& path, storage::Open how, unsigned mode,
                              std::uint64_t owner);
  void close(std::uint64_t handle);
  void close_all_of(std::uint64_t owner);
  storage::Attributes attributes(std::uint64_t handle) const;
  Outcome<std::size_t> append(std::uint64_t handle, Bytes bytes);
  Outcome<std::size_t> write(std::uint64_t handle, std::uint64_t offset, Bytes bytes);
  Outcome<std::size_t> read(std::uint64_t handle, std::uint64_t offset, MutableBytes into) const;
  std::error_code truncate(std::uint64_t handle, std::uint64_t bytes);
  void sync(std::uint64_t handle);
  void fail_sync(std::uint64_t handle);
  std::error_code lock(std::uint64_t handle);

  Outcome<storage::Attributes> attributes(const Path& path) const;
  Outcome<std::vector<storage::Entry>> list(const Path& path) const;
  std::error_code create_directory(const Path& path, unsigned mode);
  std::error_code rename(const Path& from, const Path& to);
  std::error_code remove(const Path& path);
  std::error_code remove_directory(const Path& path);
  std::error_code sync_directory(const Path& path);
  Outcome<storage::Space> space(const Path& path) const;

 private:
  using Sector = std::vector<std::byte>;  ///< empty: zeros
  struct Inode {
    storage::Kind kind = storage::Kind::kFile;
    unsigned mode = 0;
    std::int64_t modified_ns = 0;
    std::vector<std::byte> data;
    std::uint64_t synced_bytes = 0;
    std::map<std::uint64_t, Sector> unsynced;  ///< changed since the sync: as on the disk
    std::map<std::uint64_t, Sector> dropped;   ///< by a sync that failed: as on the disk
    std::map<std::string, std::uint64_t> children, synced_children;  ///< of a folder
    std::uint64_t names = 0, handles = 0;
    std::uint64_t locked_by = 0;  ///< a handle
  };
  struct Handle {
    std::uint64_t inode = 0;
    storage::Open how = storage::Open::kRead;
    std::uint64_t position = 0, owner = 0;
  };
  /// Of a name in a folder; inode 0: it is gone.
  struct Name {
    std::uint64_t folder = 0;
    std::string name;
    std::uint64_t inode = 0;
  };
  using Change = std::vector<Name>;  ///< one operation
  /// A path as far as it exists.
  struct Found {
    std::uint64_t folder = 0;  ///< of the last part
    std::string name;          ///< empty: the root
    std::uint64_t inode = 0;   ///< 0: the last part is not there
  };

  Outcome<Found> find(const Path& path) const;
  Outcome<Found> find_there(const Path& path) const;  ///< fails ENOENT: the last part is not there
  Inode& at(std::uint64_t inode) { return inodes_.at(inode); }
  const Inode& at(std::uint64_t inode) const { return inodes_.at(inode); }
  storage::Attributes about(std::uint64_t inode) const;
  bool is_within(std::uint64_t inode, std::uint64_t folder) const;
  std::uint64_t make(const Found& where, storage::Kind kind, unsigned mode);
  void change(Change change);
  void touch(Inode& inode);
  static void save_sector(Inode& file, std::uint64_t sector);
  void resize(Inode& file, std::uint64_t bytes);
  void sync_folder(std::uint64_t folder);
  std::vector<bool> with_earlier(std::vector<bool> chosen) const;
  void apply_synced(const Change& change);
  void drop_unused();
  void crash_names(CounterRng& rng);
  static void crash_content(Inode& file, CounterRng& rng);

  std::function<std::int64_t()> now_ns_;
  std::map<std::uint64_t, Inode> inodes_;
  std::map<std::uint64_t, Handle> handles_;
  std::vector<Change> unsynced_names_;  ///< in order
  std::uint64_t next_inode_ = 2, next_handle_ = 1;
  std::int64_t time_ns_ = 0;
  std::uint64_t capacity_ = std::uint64_t{1} << 40, used_ = 0;
};

}  // namespace centroid::test
