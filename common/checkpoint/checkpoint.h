#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid {

class KnownProblems;
struct Place;

/// What manifest.json promises of one file beside it.
struct FileRecord {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// What a checkpoint says of itself: manifest.json, beside model.safetensors and
/// optimizer.safetensors (or several of each, shards.h).
struct CheckpointInfo {
  std::string run_id;
  Version version;          ///< 0: there is no model in it, only other parts
  Round round;              ///< rounds committed so far
  std::uint64_t epoch = 0;  ///< position in the data: epoch and offset of the next sample
  std::uint64_t offset = 0;
  std::uint64_t optimizer_step = 0;
  std::uint64_t seed = 0;
  std::string optimizer;  ///< name, "" when there is no optimizer state
  std::vector<std::string> slot_names;
  double created_unix_seconds = 0;
  std::map<std::string, std::string> extra;  ///< free text, shown to humans
};

/// One checkpoint on disk.
struct CheckpointEntry {
  /// The directory `checkpoint-<version, 12 digits>`, and from the second of a version on
  /// `-<number, 6 digits>` behind it.
  std::filesystem::path path;
  Version version;
  std::uint64_t number = 0;  ///< of those with this version; the highest is the newest
  std::uint64_t bytes = 0;
  /// Why it is refused; empty: nothing is known against it.
  std::string problem;
  /// Of its files as they were looked at (file::stamp_of); 0: one is missing, has another size, or
  /// could not be read now.
  std::uint64_t stamp = 0;
  CheckpointInfo info;
};

/// Fill `into` (at most 1 MiB) with elements [offset, offset+into.size()) of all tensors laid end
/// to end. Plane 0 is the parameters, plane 1.. the optimizer's slots, in order.
using PlaneReader =
    std::function<Status(std::size_t plane, std::uint64_t offset, std::span<float> into)>;
/// Take elements the same way.
using PlaneWriter =
    std::function<Status(std::size_t plane, std::uint64_t offset, std::span<const float> from)>;

/// One file of a checkpoint, as its manifest has it.
struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// A file of a checkpoint beside model and optimizer: rows of a table, what clients of rows have
/// pushed. The manifest has its size and checksum.
struct CheckpointPart {
  std::string name;  ///< of the file: `rows-<table>.safetensors` or as pushes_file_name
  /// Create and fsync it; it does not exist.
  std::function<Result<FileRecord>(const std::filesystem::path& path)> write;
};
/// What clients of rows have pushed: the leader's, and of others among several servers.
inline constexpr const char* kPushesFile = "pushes.safetensors";
/// "pushes.safetensors" of the leader (0), "pushes-1.safetensors".
std::string pushes_file_name(std::size_t server);
bool is_pushes_file(const std::string& file);
std::string rows_file_name(const std::string& table);
/// Nothing when it is no name of a table's file.
std::optional<std::string> table_of_rows_file(const std::string& file);

/// What a folder of checkpoints keeps and how it writes.
struct CheckpointPolicy {
  std::size_t keep = 3;                 ///< newest ones; 0: all
  std::uint64_t keep_every_rounds = 0;  ///< those whose round is a multiple stay too; 0: none
  /// Largest file: a larger model is written as several with an index, as Hugging Face libraries do
  /// (shards.h); 0: always one.
  std::uint64_t shard_bytes = 0;
  /// Called with each that `write` deletes because of `keep`.
  std::function<void(const CheckpointEntry&)> on_pruned = {};
  /// Those for which it says so are not deleted because of `keep`, until the next `write`.
  std::function<bool(const CheckpointEntry&)> is_in_use = {};
  /// Asked before a checkpoint is begun and before it gets its name; an error: it does not.
  std::function<Status()> may_write = {};
  /// No other writer may be at work: `open` takes away what one has begun, so that it fails.
  bool is_sole = false;
};

/// Directory of checkpoints, newest wins. Blocking I/O: run it on a blocking executor. One writer
/// at a time; beside it others may read, through its `reader` or a `view` of their own. What once
/// was read and found damaged is so for all that only look, too, until its files are others or it
/// is read and found sound.
class CheckpointDirectory {
 public:
  /// Creates the directory when it is missing and removes temporary leftovers of a crash (never
  /// those of a writer that lives: it holds a lock).
  static Result<CheckpointDirectory> open(const std::filesystem::path& root,
                                          const CheckpointPolicy& policy);
  static Result<CheckpointDirectory> open(const std::filesystem::path& root, std::size_t keep) {
    CheckpointPolicy policy;
    policy.keep = keep;
    return open(root, policy);
  }

  /// To look only: nothing is created or removed.
  /// fails  not_found: no such folder.
  static Result<CheckpointDirectory> view(const std::filesystem::path& root);

  /// To look only, on any thread beside this one; what either finds out both know.
  CheckpointDirectory reader() const;

  /// The checkpoint that this folder itself is, by its name or by the manifest in it; `verify` as
  /// in `list`. Nothing when it is none.
  static std::optional<CheckpointEntry> look_at(const std::filesystem::path& folder, bool verify);

  /// Write a checkpoint: temporary name, every file fsynced, rename, fsync of the directory; then
  /// delete the oldest beyond the policy. A failure removes the temporary directory and leaves
  /// older checkpoints alone. A damaged checkpoint of the same version is replaced.
  /// fails  already_exists: a sound one of that version is there, and there are no `parts` (with
  ///        parts, which change between versions, it gets the next number); resource_exhausted:
  ///        full disk; invalid_argument: a tensor that is not f32, slot names that are empty or
  ///        double.
  Result<CheckpointEntry> write(const CheckpointInfo& info, const Manifest& manifest,
                                const PlaneReader& read,
                                const std::vector<CheckpointPart>& parts = {});
  /// All, newest first, each with its size; `verify` also reads every file and checks sizes and
  /// CRC-32C. One that is deleted meanwhile is not among them.
  std::vector<CheckpointEntry> list(bool verify) const;
  /// The newest that verifies. Refused ones are reported through `on_refused` (path, reason).
  /// not_found when there is none.
  Result<CheckpointEntry> newest_valid(
      const std::function<void(const CheckpointEntry&)>& on_refused) const;
  /// Load a verified checkpoint; its checksums are compared again on the way (data_loss: what was
  /// written is not to be used).
  /// fails  failed_precondition when its manifest differs from `manifest` (both shapes named).
  Status read(const CheckpointEntry& entry, const Manifest& manifest,
              const PlaneWriter& write) const;
  /// The tensors a checkpoint holds.
  Result<Manifest> manifest_of(const CheckpointEntry& entry) const;
  /// Names of its files that are parts.
  Result<std::vector<std::string>> parts_of(const CheckpointEntry& entry) const;

  /// The files that its manifest names, those of the model first.
  Result<std::vector<CheckpointFile>> files(const CheckpointEntry& entry) const;
  /// The newest of that version; `verify` as in `list`.
  /// fails  not_found, also when it is deleted meanwhile
  Result<CheckpointEntry> find(Version version, bool verify) const;
  /// Delete one: a crash leaves it whole or gone.
  Status remove(const CheckpointEntry& entry) const;
  /// From the next `write` on.
  void set_keep(std::size_t keep, std::uint64_t keep_every_rounds) {
    policy_.keep = keep, policy_.keep_every_rounds = keep_every_rounds;
  }

  const std::filesystem::path& root() const { return root_; }

 private:
  Status write_files(const std::filesystem::path& directory, const CheckpointInfo& info,
                     const Manifest& manifest, const PlaneReader& read,
                     const std::vector<CheckpointPart>& parts) const;
  Status publish(const std::filesystem::path& temporary, const std::filesystem::path& target) const;
  void prune() const;
  static Status read_values(const CheckpointEntry& entry, const Manifest& manifest,
                            const PlaneWriter& write);
  CheckpointEntry look(const std::filesystem::path& path, const Place& place, bool verify) const;

  std::filesystem::path root_;
  CheckpointPolicy policy_;
  std::shared_ptr<KnownProblems> known_;
};

}  // namespace centroid
