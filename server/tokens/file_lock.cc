#include "server/tokens/file_lock.h"

#include <system_error>
#include <utility>

#include "common/base/rights.h"

namespace centroid::server {

Result<std::optional<FileLock>> FileLock::try_take(const std::string& path) {
  const auto failure = [&path](const char* doing, const std::error_code& error) {
    const auto code = error == std::errc::no_space_on_device ? ErrorCode::kResourceExhausted
                                                             : ErrorCode::kFailedPrecondition;
    const bool may_not =
        error == std::errc::permission_denied || error == std::errc::operation_not_permitted;
    std::string message = path + ": " + doing + ": " + error.message();
    if (may_not) message += " (" + rights_text(path) + ")";
    return Error(code, std::move(message));
  };
  storage::ForbiddenHere::check("lock", path);
  auto opened = storage::current().open(path, storage::Open::kLock, 0600);
  if (!opened.ok()) return failure("cannot be written", opened.error);
  FileLock lock(std::move(opened.value));
  const std::error_code refused = lock.file_->lock();
  if (!refused) return std::optional<FileLock>(std::move(lock));
  // Without a lock what another server does could be undone.
  if (refused == std::errc::not_supported || refused == std::errc::function_not_supported ||
      refused == std::errc::no_lock_available)
    return Error(ErrorCode::kUnimplemented, path + ": this file system has no locks");
  if (refused != std::errc::operation_would_block) return failure("cannot be locked", refused);
  return std::optional<FileLock>();
}

}  // namespace centroid::server
