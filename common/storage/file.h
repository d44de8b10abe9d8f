#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/storage/storage.h"

/// Files of this thread's storage (storage::current). Errors name the operation and the path, and
/// the free space when the disk is full.
namespace centroid::file {

namespace fs = std::filesystem;
using storage::Attributes, storage::Entry, storage::Kind, storage::Space;

/// Owner of one open file of any storage.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(std::unique_ptr<storage::File> file) : file_(std::move(file)) {}
  bool is_open() const { return file_ != nullptr; }
  storage::File& get() const { return *file_; }

 private:
  std::unique_ptr<storage::File> file_;
};

/// For writing, with the permissions `mode` less the umask. fails already_exists
Result<Descriptor> create(const fs::path& path, unsigned mode = 0644);
/// Open for appending; a new file has `mode` less the umask.
Result<Descriptor> open_to_append(const fs::path& path, unsigned mode = 0644);
Result<Descriptor> open_to_change(const fs::path& path);  ///< opens an existing file
enum class Links : std::uint8_t { kFollowed, kRefused };
/// For reading; refuses pipes, devices, directories.
Result<Descriptor> open_regular(const fs::path& path, Links links = Links::kFollowed);
/// Locked while open. fails aborted: another descriptor has the lock
Result<Descriptor> lock_directory(const fs::path& path);
Result<Attributes> attributes_of(const Descriptor& file, const fs::path& path);
Result<std::uint64_t> size_of(const Descriptor& file, const fs::path& path);
/// Digest of the file's size, inode and time of its last change, never 0. As long as it is the
/// same, the bytes are the same.
Result<std::uint64_t> stamp_of(const Descriptor& file, const fs::path& path);
Status write_all(const Descriptor& file, const fs::path& path, Bytes bytes);
/// Fill `into` from `offset`. fails data_loss: the file ends before.
Status read_at(const Descriptor& file, const fs::path& path, std::uint64_t offset,
               MutableBytes into);
/// Write at `offset`, so that a failed write can be repeated.
Status write_at(const Descriptor& file, const fs::path& path, std::uint64_t offset, Bytes bytes);
/// Cut the file to `bytes`.
Status truncate(const Descriptor& file, const fs::path& path, std::uint64_t bytes);
Status sync(const Descriptor& file, const fs::path& path);
Status sync_data(const Descriptor& file, const fs::path& path);  ///< fdatasync
Status close(Descriptor file, const fs::path& path);
Status sync_directory(const fs::path& path);
Status create_directory(const fs::path& path);
Status rename(const fs::path& from, const fs::path& to);
Status remove(const fs::path& path);  ///< a missing file is a success; refuses a directory
Result<Space> space_around(const fs::path& path);  ///< of the disk of the path

/// Read a regular file. fails not_found; resource_exhausted: the file is larger than `most_bytes`
Result<std::string> read_text(const fs::path& path,
                              std::uint64_t most_bytes = std::uint64_t{1} << 30);
/// Create or truncate a file and write `text`; not atomic (replace_file.h is), not synced.
Status write_text(const fs::path& path, const std::string& text, unsigned mode = 0644);

/// Nothing: the path does not exist.
Result<std::optional<Attributes>> attributes_of(const fs::path& path);
bool exists(const fs::path& path);        ///< false also after an error
bool is_directory(const fs::path& path);  ///< false also after an error
bool is_regular(const fs::path& path);    ///< false also after an error
/// The entries of a folder, sorted by name.
Result<std::vector<Entry>> list(const fs::path& path);

/// Create the folder and its missing parents. Returns whether it was missing; `failed` is the
/// errno, for callers with their own error text.
bool create_directories(const fs::path& path, std::error_code& failed);
/// Remove a file, or a folder with its content; succeeds for a missing path.
Status remove_all(const fs::path& path);

}  // namespace centroid::file
