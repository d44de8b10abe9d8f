#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "server/tokens/file_lock.h"

namespace centroid::server {

/// Create a folder that `setting` names, unless it is there.
/// fails  failed_precondition: it cannot be created; says whose the folder above is, and what to
///        do.
Status make_folder(const std::string& setting, const std::string& folder);

/// One server at a time writes into a folder: without etcd nothing else fences one that was thought
/// dead (stopped, swapped out) from its successor. Holds `server.lock` of each folder as long as it
/// lives; the kernel gives it back when the process ends, however it ends.
///
/// thread  any, one at a time
class FolderClaim {
 public:
  static constexpr const char* kFile = "server.lock";

  /// Creates the folder, which `setting` names. One claimed twice is claimed once. Of a file system
  /// without locks the log warns.
  ///
  /// fails   unavailable: another server has it, and the error says which; failed_precondition,
  ///         resource_exhausted: the folder cannot be written
  Status take(const std::string& setting, const std::string& folder);

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> folders_;  ///< device and inode of each
  std::vector<FileLock> locks_;
};

}  // namespace centroid::server
