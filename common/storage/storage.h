#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/bytes.h"

/// The file system as an interface: the operating system's, or one in memory that a test controls.
///
/// Operations are primitive and fail with an errno (generic category). Other code calls the
/// functions of file.h, whose errors name the operation and the path.
namespace centroid::storage {

namespace fs = std::filesystem;

/// The value of an operation, or its errno.
template <class T>
struct [[nodiscard]] Outcome {
  Outcome(T made) : value(std::move(made)) {}
  Outcome(std::error_code failed) : error(failed) {}
  bool ok() const { return !error; }

  std::error_code error;
  T value{};
};

enum class Kind : std::uint8_t { kFile, kFolder, kOther };

struct Attributes {
  Kind kind = Kind::kOther;
  unsigned mode = 0;  ///< permissions
  std::uint64_t bytes = 0;
  std::uint64_t device = 0, inode = 0;  ///< the pair identifies the file
  std::int64_t modified_ns = 0;         ///< last change of the content, since 1970
};

struct Entry {
  std::string name;
  Attributes about;  ///< of the target, for a symbolic link
};

struct Space {
  std::uint64_t free_bytes = 0;  ///< for users other than root
  std::uint64_t total_bytes = 0;
};

enum class Open : std::uint8_t {
  kCreate,      ///< create for writing; fails EEXIST: the name exists
  kAppend,      ///< open for reading and appending; creates a missing file
  kChange,      ///< open an existing file for writing
  kRead,        ///< open for reading; does not wait for the writer of a pipe
  kReadNoLink,  ///< as kRead; fails ELOOP: the last component of the path is a symbolic link
  kLock,        ///< open a file to lock it; creates a missing file
  kFolder,      ///< open a folder to lock it
};

/// An open file. It stays the same file when it is renamed or removed.
///
/// thread  any; concurrent operations on the same bytes have no order
/// cost    one system call each
class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;  ///< closes the file and releases its lock

  virtual Outcome<Attributes> attributes() = 0;
  /// Write at the end of the file (kAppend), else behind the previous `write`. Returns how many
  /// bytes were written, at least one.
  virtual Outcome<std::size_t> write(Bytes bytes) = 0;
  /// The same at `offset`; kAppend ignores the offset, as Linux does.
  virtual Outcome<std::size_t> write_at(std::uint64_t offset, Bytes bytes) = 0;
  /// Returns how many bytes were read; 0: the file ends at `offset`.
  virtual Outcome<std::size_t> read_at(std::uint64_t offset, MutableBytes into) = 0;
  virtual std::error_code truncate(std::uint64_t bytes) = 0;
  virtual std::error_code sync() = 0;
  virtual std::error_code sync_data() = 0;
  /// Take the exclusive lock without waiting. fails EWOULDBLOCK: another open file has it;
  /// ENOTSUP, ENOLCK, ENOSYS: the file system has no locks
  virtual std::error_code lock() = 0;
  virtual std::error_code close() = 0;  ///< the last operation
};

/// A file system.
///
/// thread  any
class Storage {
 public:
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  /// A new file has the permissions `mode` less the umask.
  virtual Outcome<std::unique_ptr<File>> open(const fs::path& path, Open how, unsigned mode) = 0;
  virtual Outcome<Attributes> attributes(const fs::path& path) = 0;
  /// Sorted by name, without "." and "..".
  virtual Outcome<std::vector<Entry>> list(const fs::path& path) = 0;
  virtual std::error_code create_directory(const fs::path& path, unsigned mode) = 0;
  virtual std::error_code rename(const fs::path& from, const fs::path& to) = 0;
  virtual std::error_code remove(const fs::path& path) = 0;            ///< fails EISDIR: a folder
  virtual std::error_code remove_directory(const fs::path& path) = 0;  ///< fails ENOTEMPTY
  /// Make the names in the folder durable.
  virtual std::error_code sync_directory(const fs::path& path) = 0;
  virtual Outcome<Space> space(const fs::path& path) = 0;  ///< of the disk of an existing path
};

/// Files of the operating system; child programs do not inherit open files.
Storage& operating_system();

/// The storage of this thread: the operating system's, unless a ScopedStorage binds another one.
Storage& current();

/// Binds a storage to this thread for its lifetime; scopes nest. A new thread does not inherit it;
/// pass it on: `[storage = &storage::current()] { const ScopedStorage own(*storage); ...`.
///
/// owns  nothing; the storage must outlive this and every file that was opened with it
class ScopedStorage {
 public:
  explicit ScopedStorage(Storage& storage);
  ~ScopedStorage();
  ScopedStorage(const ScopedStorage&) = delete;
  ScopedStorage& operator=(const ScopedStorage&) = delete;

 private:
  Storage* const before_;
};

/// Marks code that must not wait for a disk, such as a service thread's: during its lifetime an
/// operation of file.h on this thread aborts the process with the operation and the path. The
/// destructor of a Descriptor is exempt.
class ForbiddenHere {
 public:
  explicit ForbiddenHere(const char* thread);  ///< for the message; a string literal
  ~ForbiddenHere();
  ForbiddenHere(const ForbiddenHere&) = delete;
  ForbiddenHere& operator=(const ForbiddenHere&) = delete;

  /// Abort the process if storage is forbidden on this thread.
  static void check(const char* operation, const fs::path& path);

 private:
  const char* const before_;
};

/// What ScopedStorage and ForbiddenHere have set on a thread.
struct ThreadState {
  Storage* storage = nullptr;  ///< nullptr: the operating system's
  const char* forbidden_for = nullptr;
};
/// Replace the state of this thread and return the previous one: for a scheduler that runs fibers,
/// each with a state of its own, on one thread.
ThreadState exchange(ThreadState next);

/// Create the folder and its missing parents. Returns whether it was missing. fails ENOTDIR: a name
/// on the way is not a folder
Outcome<bool> create_directories(Storage& storage, const fs::path& path);
/// Remove a file, or a folder with its content; succeeds for a missing path. Symbolic links are
/// removed, not followed.
std::error_code remove_all(Storage& storage, const fs::path& path);

}  // namespace centroid::storage
