#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/result.h"

/// Files as values and errors: each call names operation and path, and a full disk says how much is
/// free.
namespace centroid::file {

namespace fs = std::filesystem;

/// Owner of one open file.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// For writing, with the permissions `mode` less the umask. fails already_exists: it is there
Result<Descriptor> create(const fs::path& path, unsigned mode = 0644);
/// What is written goes behind what is there; a new file has `mode` less the umask.
Result<Descriptor> open_to_append(const fs::path& path, unsigned mode = 0644);
Result<Descriptor> open_to_change(const fs::path& path);  ///< of a file that is there
Result<Descriptor> open_regular(
    const fs::path& path);  ///< for reading; refuses pipes, devices, directories
Result<Descriptor> lock_directory(
    const fs::path& path);  ///< held while open; aborted when another holds it
Result<std::uint64_t> size_of(const Descriptor& file, const fs::path& path);
/// Digest of the file's size, inode and time of its last change, never 0: as long as it is the same
/// nobody has written other bytes there.
Result<std::uint64_t> stamp_of(const Descriptor& file, const fs::path& path);
Status write_all(const Descriptor& file, const fs::path& path, Bytes bytes);
/// Fill `into` from `offset`. fails data_loss: the file ends before.
Status read_at(const Descriptor& file, const fs::path& path, std::uint64_t offset,
               MutableBytes into);
/// At `offset`, so that a failed write can be repeated as it was.
Status write_at(const Descriptor& file, const fs::path& path, std::uint64_t offset, Bytes bytes);
/// Cut the file to so many bytes.
Status truncate(const Descriptor& file, const fs::path& path, std::uint64_t bytes);
Status sync(const Descriptor& file, const fs::path& path);
Status sync_data(const Descriptor& file, const fs::path& path);  ///< fdatasync
Status close(Descriptor file, const fs::path& path);
Status sync_directory(const fs::path& path);
Status create_directory(const fs::path& path);
Status rename(const fs::path& from, const fs::path& to);
Status remove(const fs::path& path);  ///< of a file, none is as good; refuses a directory

struct Space {
  std::uint64_t free_bytes = 0;  ///< for who is not root
  std::uint64_t total_bytes = 0;
};
Result<Space> space_around(const fs::path& path);  ///< of the disk that it lies on

/// Asked before each operation ("create", "open", "lock", "write", "read", "sync", "close",
/// "truncate", "sync_directory", "create_directory", "rename", "remove", "space"): an errno makes
/// it fail so, 0 lets it happen.
using FaultHook = std::function<int(std::string_view operation, const fs::path& path)>;

/// For tests: the hook holds for this thread while the object lives.
class ScopedFaultHook {
 public:
  explicit ScopedFaultHook(FaultHook hook);
  ~ScopedFaultHook();
  ScopedFaultHook(const ScopedFaultHook&) = delete;
  ScopedFaultHook& operator=(const ScopedFaultHook&) = delete;

 private:
  FaultHook hook_;
};

}  // namespace centroid::file
