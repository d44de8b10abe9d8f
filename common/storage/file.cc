#include "common/storage/file.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>

#include "common/base/random.h"

namespace centroid::file {
namespace {

using storage::Open, storage::Outcome;

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
      return ErrorCode::kUnavailable;
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

Error failed(const std::error_code& error, const char* operation, const fs::path& path) {
  std::string message = std::string(operation) + " " + path.string() + ": " + error.message();
  if (error == std::errc::no_space_on_device) {
    const auto space = storage::current().space(path.parent_path());
    if (space.ok())
      message += ", " + std::to_string(space.value.free_bytes) + " bytes are free there";
  }
  return {code_of(error.value()), std::move(message)};
}

/// Where an operation on `path` goes.
storage::Storage& storage_for(const char* operation, const fs::path& path) {
  storage::ForbiddenHere::check(operation, path);
  return storage::current();
}

storage::File& file_for(const char* operation, const Descriptor& file, const fs::path& path) {
  storage::ForbiddenHere::check(operation, path);
  return file.get();
}

Status as_status(const std::error_code& error, const char* operation, const fs::path& path) {
  if (error) return failed(error, operation, path);
  return {};
}

Result<Descriptor> open(const char* operation, const fs::path& path, Open how, unsigned mode) {
  auto opened = storage_for(operation, path).open(path, how, mode);
  if (!opened.ok()) return failed(opened.error, operation, path);
  return Descriptor(std::move(opened.value));
}

bool is_kind(const fs::path& path, Kind kind) {
  const auto about = storage_for("stat", path).attributes(path);
  return about.ok() && about.value.kind == kind;
}

}  // namespace

Result<Descriptor> create(const fs::path& path, unsigned mode) {
  return open("create", path, Open::kCreate, mode);
}

Result<Descriptor> open_to_append(const fs::path& path, unsigned mode) {
  return open("open", path, Open::kAppend, mode);
}

Result<Descriptor> open_to_change(const fs::path& path) {
  return open("open", path, Open::kChange, 0);
}

Result<Descriptor> open_regular(const fs::path& path, Links links) {
  const Open how = links == Links::kFollowed ? Open::kRead : Open::kReadNoLink;
  CENTROID_ASSIGN(Descriptor file, open("open", path, how, 0));
  CENTROID_ASSIGN(const Attributes about, attributes_of(file, path));
  if (about.kind != Kind::kFile)
    return Error(ErrorCode::kFailedPrecondition, "open " + path.string() + ": not a regular file");
  return file;
}

Result<Descriptor> lock_directory(const fs::path& path) {
  CENTROID_ASSIGN(Descriptor directory, open("lock", path, Open::kFolder, 0));
  const std::error_code locked = directory.get().lock();
  if (locked == std::errc::operation_would_block)
    return failed(locked, "lock", path);  // a file system without locks is no reason to stop
  return directory;
}

Result<Attributes> attributes_of(const Descriptor& file, const fs::path& path) {
  auto about = file_for("stat", file, path).attributes();
  if (!about.ok()) return failed(about.error, "stat", path);
  return about.value;
}

Result<std::uint64_t> size_of(const Descriptor& file, const fs::path& path) {
  CENTROID_ASSIGN(const Attributes about, attributes_of(file, path));
  return about.bytes;
}

Result<std::uint64_t> stamp_of(const Descriptor& file, const fs::path& path) {
  CENTROID_ASSIGN(const Attributes about, attributes_of(file, path));
  constexpr std::int64_t kSecond = 1'000'000'000;
  std::uint64_t stamp = mix64(about.bytes);
  stamp = mix64(stamp, about.inode);
  stamp = mix64(stamp, static_cast<std::uint64_t>(about.modified_ns / kSecond));
  stamp = mix64(stamp, static_cast<std::uint64_t>(about.modified_ns % kSecond));
  return std::max<std::uint64_t>(stamp, 1);
}

Status write_all(const Descriptor& file, const fs::path& path, Bytes bytes) {
  storage::File& into = file_for("write", file, path);
  while (!bytes.empty()) {
    const auto written = into.write(bytes);
    if (!written.ok()) return failed(written.error, "write", path);
    bytes = bytes.subspan(written.value);
  }
  return {};
}

Status write_at(const Descriptor& file, const fs::path& path, std::uint64_t offset, Bytes bytes) {
  storage::File& into = file_for("write", file, path);
  while (!bytes.empty()) {
    const auto written = into.write_at(offset, bytes);
    if (!written.ok()) return failed(written.error, "write", path);
    bytes = bytes.subspan(written.value);
    offset += written.value;
  }
  return {};
}

Status truncate(const Descriptor& file, const fs::path& path, std::uint64_t bytes) {
  return as_status(file_for("truncate", file, path).truncate(bytes), "truncate", path);
}

Status read_at(const Descriptor& file, const fs::path& path, std::uint64_t offset,
               MutableBytes into) {
  storage::File& from = file_for("read", file, path);
  while (!into.empty()) {
    const auto count = from.read_at(offset, into);
    if (!count.ok()) return failed(count.error, "read", path);
    if (count.value == 0)
      return Error(ErrorCode::kDataLoss, "read " + path.string() + ": the file ends at byte " +
                                             std::to_string(offset) + ", " +
                                             std::to_string(into.size()) + " more were expected");
    into = into.subspan(count.value);
    offset += count.value;
  }
  return {};
}

Status sync(const Descriptor& file, const fs::path& path) {
  return as_status(file_for("sync", file, path).sync(), "sync", path);
}

Status sync_data(const Descriptor& file, const fs::path& path) {
  return as_status(file_for("sync", file, path).sync_data(), "sync", path);
}

Status close(Descriptor file, const fs::path& path) {
  return as_status(file_for("close", file, path).close(), "close", path);
}

Status sync_directory(const fs::path& path) {
  constexpr const char* kName = "sync_directory";
  return as_status(storage_for(kName, path).sync_directory(path), kName, path);
}

Status create_directory(const fs::path& path) {
  constexpr const char* kName = "create_directory";
  return as_status(storage_for(kName, path).create_directory(path, 0755), kName, path);
}

Status rename(const fs::path& from, const fs::path& to) {
  return as_status(storage_for("rename", from).rename(from, to), "rename", from);
}

Status remove(const fs::path& path) {
  const std::error_code error = storage_for("remove", path).remove(path);
  if (error == std::errc::no_such_file_or_directory) return {};
  return as_status(error, "remove", path);
}

Result<Space> space_around(const fs::path& path) {
  const auto space = storage_for("space", path).space(path);
  if (!space.ok()) return failed(space.error, "space", path);
  return space.value;
}

Result<std::string> read_text(const fs::path& path, std::uint64_t most_bytes) {
  CENTROID_ASSIGN(const Descriptor file, open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, size_of(file, path));
  if (bytes > most_bytes)
    return Error(ErrorCode::kResourceExhausted,
                 "read " + path.string() + ": " + std::to_string(bytes) +
                     " bytes, expected at most " + std::to_string(most_bytes));
  std::string text(static_cast<std::size_t>(bytes), '\0');
  CENTROID_TRY(read_at(file, path, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status write_text(const fs::path& path, const std::string& text, unsigned mode) {
  CENTROID_ASSIGN(const Descriptor file, open_to_append(path, mode));
  CENTROID_TRY(truncate(file, path, 0));
  return write_all(file, path, std::as_bytes(std::span(text)));
}

Result<std::optional<Attributes>> attributes_of(const fs::path& path) {
  const auto about = storage_for("stat", path).attributes(path);
  if (about.ok()) return std::make_optional(about.value);
  const bool is_missing = about.error == std::errc::no_such_file_or_directory ||
                          about.error == std::errc::not_a_directory;
  if (is_missing) return std::optional<Attributes>();
  return failed(about.error, "stat", path);
}

bool exists(const fs::path& path) { return storage_for("stat", path).attributes(path).ok(); }
bool is_directory(const fs::path& path) { return is_kind(path, Kind::kFolder); }
bool is_regular(const fs::path& path) { return is_kind(path, Kind::kFile); }

Result<std::vector<Entry>> list(const fs::path& path) {
  auto entries = storage_for("list", path).list(path);
  if (!entries.ok()) return failed(entries.error, "list", path);
  return std::move(entries.value);
}

bool create_directories(const fs::path& path, std::error_code& error) {
  const auto made = storage::create_directories(storage_for("create_directory", path), path);
  error = made.error;
  return made.ok() && made.value;
}

Status remove_all(const fs::path& path) {
  return as_status(storage::remove_all(storage_for("remove", path), path), "remove", path);
}

}  // namespace centroid::file
