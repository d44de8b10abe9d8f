#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/storage/storage.h"

namespace centroid::storage {
namespace {

std::error_code last_error() { return {errno, std::generic_category()}; }

/// The result of a system call that gives -1 on failure; repeated when a signal interrupts it.
template <class Call>
auto repeated(Call call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

template <class Call>
std::error_code done(Call call) {
  return repeated(call) < 0 ? last_error() : std::error_code();
}

template <class Call>
Outcome<std::size_t> counted(Call call) {
  const auto count = repeated(call);
  if (count < 0) return last_error();
  return static_cast<std::size_t>(count);
}

Attributes attributes_of(const struct stat& status) {
  Attributes about;
  about.kind = S_ISREG(status.st_mode)   ? Kind::kFile
               : S_ISDIR(status.st_mode) ? Kind::kFolder
                                         : Kind::kOther;
  about.mode = status.st_mode & 07777u;
  about.bytes = static_cast<std::uint64_t>(status.st_size);
  about.device = status.st_dev;
  about.inode = status.st_ino;
  about.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return about;
}

int flags_of(Open how) {
  switch (how) {
    case Open::kCreate:
      return O_WRONLY | O_CREAT | O_EXCL;
    case Open::kAppend:
      return O_RDWR | O_CREAT | O_APPEND;
    case Open::kChange:
      return O_WRONLY;
    case Open::kRead:
      return O_RDONLY | O_NONBLOCK;  // opening a pipe would wait for its writer
    case Open::kReadNoLink:
      return O_RDONLY | O_NONBLOCK | O_NOFOLLOW;
    case Open::kLock:
      return O_RDWR | O_CREAT;
    case Open::kFolder:
      return O_RDONLY | O_DIRECTORY;
  }
  return O_RDONLY;
}

class PosixFile final : public File {
 public:
  explicit PosixFile(int fd) : fd_(fd) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  Outcome<Attributes> attributes() override {
    struct stat status{};
    if (::fstat(fd_, &status) != 0) return last_error();
    return attributes_of(status);
  }
  Outcome<std::size_t> write(Bytes bytes) override {
    return counted([&] { return ::write(fd_, bytes.data(), bytes.size()); });
  }
  Outcome<std::size_t> write_at(std::uint64_t offset, Bytes bytes) override {
    const auto at = static_cast<off_t>(offset);
    return counted([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), at); });
  }
  Outcome<std::size_t> read_at(std::uint64_t offset, MutableBytes into) override {
    const auto at = static_cast<off_t>(offset);
    return counted([&] { return ::pread(fd_, into.data(), into.size(), at); });
  }
  std::error_code truncate(std::uint64_t bytes) override {
    return done([&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); });
  }
  std::error_code sync() override {
    return done([&] { return ::fsync(fd_); });
  }
  std::error_code sync_data() override {
    return done([&] { return ::fdatasync(fd_); });
  }
  std::error_code lock() override {
    return done([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); });
  }
  std::error_code close() override {
    // Not repeated after EINTR: on Linux the descriptor is closed then.
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return last_error();
    return {};
  }

 private:
  int fd_;
};

class PosixStorage final : public Storage {
 public:
  Outcome<std::unique_ptr<File>> open(const fs::path& path, Open how, unsigned mode) override {
    const int flags = flags_of(how) | O_CLOEXEC;
    const int fd = repeated([&] { return ::open(path.c_str(), flags, mode); });
    if (fd < 0) return last_error();
    return std::unique_ptr<File>(std::make_unique<PosixFile>(fd));
  }
  Outcome<Attributes> attributes(const fs::path& path) override {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) return last_error();
    return attributes_of(status);
  }
  Outcome<std::vector<Entry>> list(const fs::path& path) override {
    const auto close_folder = [](DIR* open) { ::closedir(open); };
    const std::unique_ptr<DIR, decltype(close_folder)> folder(::opendir(path.c_str()),
                                                              close_folder);
    if (folder == nullptr) return last_error();
    std::vector<Entry> entries;
    errno = 0;
    while (const dirent* const found = ::readdir(folder.get())) {
      Entry entry{found->d_name, {}};
      struct stat status{};
      const bool is_there = ::fstatat(::dirfd(folder.get()), found->d_name, &status, 0) == 0;
      if (is_there) entry.about = attributes_of(status);
      const bool is_gone =
          !is_there && errno == ENOENT &&  // else a link to nothing
          ::fstatat(::dirfd(folder.get()), found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0;
      errno = 0;
      if (!is_gone && entry.name != "." && entry.name != "..") entries.push_back(std::move(entry));
    }
    if (errno != 0) return last_error();
    std::ranges::sort(entries, {}, &Entry::name);
    return entries;
  }
  std::error_code create_directory(const fs::path& path, unsigned mode) override {
    return done([&] { return ::mkdir(path.c_str(), mode); });
  }
  std::error_code rename(const fs::path& from, const fs::path& to) override {
    return done([&] { return ::rename(from.c_str(), to.c_str()); });
  }
  std::error_code remove(const fs::path& path) override {
    return done([&] { return ::unlink(path.c_str()); });
  }
  std::error_code remove_directory(const fs::path& path) override {
    return done([&] { return ::rmdir(path.c_str()); });
  }
  std::error_code sync_directory(const fs::path& path) override {
    auto folder = open(path, Open::kFolder, 0);
    return folder.ok() ? folder.value->sync() : folder.error;
  }
  Outcome<Space> space(const fs::path& path) override {
    struct statvfs disk{};
    if (repeated([&] { return ::statvfs(path.c_str(), &disk); }) != 0) return last_error();
    return Space{.free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize,
                 .total_bytes = std::uint64_t{disk.f_blocks} * disk.f_frsize};
  }
};

}  // namespace

Storage& operating_system() {
  static PosixStorage* const storage = new PosixStorage;  // outlives every other static
  return *storage;
}

}  // namespace centroid::storage
