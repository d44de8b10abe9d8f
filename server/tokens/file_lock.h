#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/result.h"
#include "common/storage/storage.h"

namespace centroid::server {

/// Of servers with one folder one at a time (flock on a file that stays); given back when it is
/// destroyed.
class FileLock {
 public:
  /// None: another one has it now. Waits for nobody.
  /// fails  failed_precondition: the file cannot be written or locked; resource_exhausted: no space
  ///        for it; unimplemented: nothing can be locked in this file system
  static Result<std::optional<FileLock>> try_take(const std::string& path);
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

 private:
  explicit FileLock(std::unique_ptr<storage::File> file) : file_(std::move(file)) {}
  std::unique_ptr<storage::File> file_;
};

}  // namespace centroid::server
