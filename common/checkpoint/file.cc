#include "common/checkpoint/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include "common/base/random.h"

namespace centroid::file {
namespace {

thread_local const FaultHook* active_hook = nullptr;

// 0, or the errno a test wants instead of the operation.
int injected(std::string_view operation, const fs::path& path) {
  return active_hook == nullptr ? 0 : (*active_hook)(operation, path);
}

ErrorCode code_of(int number) {
  switch (number) {
    case ENOENT:
      return ErrorCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return ErrorCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ErrorCode::kResourceExhausted;
    case EIO:
      return ErrorCode::kDataLoss;
    case EWOULDBLOCK:
      return ErrorCode::kAborted;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
      return ErrorCode::kFailedPrecondition;
    default:
      return ErrorCode::kInternal;
  }
}

Error failed(int number, std::string_view operation, const fs::path& path) {
  std::string message = std::string(operation) + " " + path.string() + ": " +
                        std::error_code(number, std::generic_category()).message();
  struct statvfs space{};
  if (number == ENOSPC && ::statvfs(path.parent_path().c_str(), &space) == 0)
    message += ", " + std::to_string(std::uint64_t{space.f_bavail} * space.f_frsize) +
               " bytes are free there";
  return {code_of(number), std::move(message)};
}

// Run `call` (a lambda around one system call that gives -1 on failure), repeating it when a signal
// interrupts.
template <class Call>
auto attempt(std::string_view operation, const fs::path& path, Call call)
    -> Result<decltype(call())> {
  if (const int number = injected(operation, path); number != 0)
    return failed(number, operation, path);
  while (true) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return failed(errno, operation, path);
  }
}

template <class T>
Status as_status(Result<T> result) {
  if (!result.ok()) return std::move(result).error();
  return {};
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<Descriptor> create(const fs::path& path, unsigned mode) {
  CENTROID_ASSIGN(const int fd, attempt("create", path, [&] {
                    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
                  }));
  return Descriptor(fd);
}

Result<Descriptor> open_to_append(const fs::path& path, unsigned mode) {
  CENTROID_ASSIGN(const int fd, attempt("open", path, [&] {
                    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, mode);
                  }));
  return Descriptor(fd);
}

Result<Descriptor> open_to_change(const fs::path& path) {
  CENTROID_ASSIGN(const int fd, attempt("open", path, [&] {
                    return ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
                  }));
  return Descriptor(fd);
}

Result<Descriptor> open_regular(const fs::path& path) {
  // Not blocking: opening a pipe would wait for its writer.
  CENTROID_ASSIGN(const int fd, attempt("open", path, [&] {
                    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
                  }));
  Descriptor file(fd);
  struct stat status{};
  if (::fstat(fd, &status) != 0) return failed(errno, "stat", path);
  if (!S_ISREG(status.st_mode))
    return Error(ErrorCode::kFailedPrecondition, "open " + path.string() + ": not a regular file");
  return file;
}

Result<Descriptor> lock_directory(const fs::path& path) {
  CENTROID_ASSIGN(const int fd, attempt("lock", path, [&] {
                    return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                  }));
  Descriptor directory(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return failed(errno, "lock", path);  // a file system without locks is no reason to stop
  return directory;
}

Result<std::uint64_t> size_of(const Descriptor& file, const fs::path& path) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return failed(errno, "stat", path);
  return static_cast<std::uint64_t>(status.st_size);
}

Result<std::uint64_t> stamp_of(const Descriptor& file, const fs::path& path) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return failed(errno, "stat", path);
  std::uint64_t stamp = mix64(static_cast<std::uint64_t>(status.st_size));
  stamp = mix64(stamp, static_cast<std::uint64_t>(status.st_ino));
  stamp = mix64(stamp, static_cast<std::uint64_t>(status.st_mtim.tv_sec));
  stamp = mix64(stamp, static_cast<std::uint64_t>(status.st_mtim.tv_nsec));
  return std::max<std::uint64_t>(stamp, 1);
}

Status write_all(const Descriptor& file, const fs::path& path, Bytes bytes) {
  while (!bytes.empty()) {
    CENTROID_ASSIGN(const ssize_t written, attempt("write", path, [&] {
                      return ::write(file.get(), bytes.data(), bytes.size());
                    }));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status write_at(const Descriptor& file, const fs::path& path, std::uint64_t offset, Bytes bytes) {
  while (!bytes.empty()) {
    CENTROID_ASSIGN(const ssize_t written, attempt("write", path, [&] {
                      return ::pwrite(file.get(), bytes.data(), bytes.size(),
                                      static_cast<off_t>(offset));
                    }));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Status truncate(const Descriptor& file, const fs::path& path, std::uint64_t bytes) {
  return as_status(attempt("truncate", path,
                           [&] { return ::ftruncate(file.get(), static_cast<off_t>(bytes)); }));
}

Status read_at(const Descriptor& file, const fs::path& path, std::uint64_t offset,
               MutableBytes into) {
  while (!into.empty()) {
    CENTROID_ASSIGN(const ssize_t count, attempt("read", path, [&] {
                      return ::pread(file.get(), into.data(), into.size(),
                                     static_cast<off_t>(offset));
                    }));
    if (count == 0)
      return Error(ErrorCode::kDataLoss, "read " + path.string() + ": the file ends at byte " +
                                             std::to_string(offset) + ", " +
                                             std::to_string(into.size()) + " more were expected");
    into = into.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Status sync(const Descriptor& file, const fs::path& path) {
  return as_status(attempt("sync", path, [&] { return ::fsync(file.get()); }));
}

Status sync_data(const Descriptor& file, const fs::path& path) {
  return as_status(attempt("sync", path, [&] { return ::fdatasync(file.get()); }));
}

Status close(Descriptor file, const fs::path& path) {
  // Not repeated after EINTR: on Linux the descriptor is gone then.
  if (const int number = injected("close", path); number != 0) return failed(number, "close", path);
  if (::close(file.release()) != 0 && errno != EINTR) return failed(errno, "close", path);
  return {};
}

Status sync_directory(const fs::path& path) {
  CENTROID_ASSIGN(const int fd, attempt("sync_directory", path, [&] {
                    return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                  }));
  const Descriptor directory(fd);
  return sync(directory, path);
}

Status create_directory(const fs::path& path) {
  return as_status(attempt("create_directory", path, [&] { return ::mkdir(path.c_str(), 0755); }));
}

Status rename(const fs::path& from, const fs::path& to) {
  return as_status(attempt("rename", from, [&] { return ::rename(from.c_str(), to.c_str()); }));
}

Status remove(const fs::path& path) {
  const auto unlink = [&] {
    const int result = ::unlink(path.c_str());
    return result != 0 && errno == ENOENT ? 0 : result;
  };
  return as_status(attempt("remove", path, unlink));
}

ScopedFaultHook::ScopedFaultHook(FaultHook hook) : hook_(std::move(hook)) { active_hook = &hook_; }
ScopedFaultHook::~ScopedFaultHook() { active_hook = nullptr; }

Result<Space> space_around(const fs::path& path) {
  struct statvfs disk{};
  const auto look = [&] { return ::statvfs(path.c_str(), &disk); };
  CENTROID_TRY(attempt("space", path, look));
  return Space{.free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize,
               .total_bytes = std::uint64_t{disk.f_blocks} * disk.f_frsize};
}

}  // namespace centroid::file
