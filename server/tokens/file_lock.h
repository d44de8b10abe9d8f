#pragma once

#include <optional>
#include <string>
#include <utility>

#include "common/base/result.h"

namespace centroid::server {

/// Of servers with one folder one at a time (flock on a file that stays); given back when it is
/// destroyed.
class FileLock {
 public:
  /// None: another one has it now. Waits for nobody. fails failed_precondition: the file cannot be
  /// written or locked; resource_exhausted: no space for it; unimplemented: nothing can be locked
  /// in this file system
  static Result<std::optional<FileLock>> try_take(const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace centroid::server
