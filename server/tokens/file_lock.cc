#include "server/tokens/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/rights.h"

namespace centroid::server {

Result<std::optional<FileLock>> FileLock::try_take(const std::string& path) {
  const auto failure = [&path](const char* doing) {
    const auto code =
        errno == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kFailedPrecondition;
    const bool may_not = errno == EACCES || errno == EPERM;
    std::string message = path + ": " + doing + ": " + std::strerror(errno);
    if (may_not) message += " (" + rights_text(path) + ")";
    return Error(code, std::move(message));
  };
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return failure("cannot be written");
  FileLock lock(fd);
  int locked = -1;
  while ((locked = ::flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) continue;
  if (locked == 0) return std::optional<FileLock>(std::move(lock));
  // Without a lock what another server does could be undone.
  if (errno == ENOTSUP || errno == ENOSYS || errno == ENOLCK)
    return Error(ErrorCode::kUnimplemented, path + ": this file system has no locks");
  if (errno != EWOULDBLOCK) return failure("cannot be locked");
  return std::optional<FileLock>();
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace centroid::server
