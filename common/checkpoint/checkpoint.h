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
#include "common/checkpoint/safetensors.h"
#include "common/tensor/tensor.h"

namespace centroid {

class KnownProblems;
struct CheckpointManifest;
struct Place;

/// The content of manifest.json, beside model.safetensors and optimizer.safetensors (or several of
/// each, shards.h).
struct CheckpointInfo {
  std::string run_id;
  Version version;          ///< 0: without a model, only other parts
  Round round;              ///< rounds committed so far
  std::uint64_t epoch = 0;  ///< position in the data: epoch and offset of the next sample
  std::uint64_t offset = 0;
  std::uint64_t optimizer_step = 0;
  std::uint64_t seed = 0;
  std::string optimizer;  ///< name, "" without optimizer state
  std::vector<std::string> slot_names;
  double created_unix_seconds = 0;
  std::map<std::string, std::string> extra;  ///< free text, shown to humans
};

/// One checkpoint on disk.
struct CheckpointEntry {
  /// The directory `checkpoint-<version, 12 digits>`; the second and later ones of a version have
  /// the suffix `-<number, 6 digits>`.
  std::filesystem::path path;
  Version version;
  std::uint64_t number = 0;  ///< among those with this version; the highest is the newest
  std::uint64_t bytes = 0;
  /// Why it is refused; empty: no problem is known.
  std::string problem;
  /// The disk could not read it, which may pass, or a later program wrote its format. Nobody knows
  /// what it has, so no program replaces it or continues from an older checkpoint.
  bool is_unreadable = false;
  /// Of its files when they were checked (file::stamp_of); 0: one is missing, has another size, or
  /// was unreadable.
  std::uint64_t stamp = 0;
  CheckpointInfo info;
};

/// That this one is unreadable, and what to do.
Error unreadable(const CheckpointEntry& entry);

/// Fill `into` (at most 1 MiB) with elements [offset, offset+into.size()) of all tensors laid end
/// to end. Plane 0 is the parameters, plane 1.. the optimizer's slots, in order.
using PlaneReader =
    std::function<Status(std::size_t plane, std::uint64_t offset, std::span<float> into)>;
/// Accept elements in the same form.
using PlaneWriter =
    std::function<Status(std::size_t plane, std::uint64_t offset, std::span<const float> from)>;

/// One file of a checkpoint, by its manifest.
struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// A file of a checkpoint beside model and optimizer: rows of a table, or pushes of clients of
/// rows. The manifest has its size and checksum.
struct CheckpointPart {
  std::string name;  ///< of the file: `rows-<table>.safetensors` or as pushes_file_name
  /// Create and fsync it; it does not exist.
  std::function<Result<FileRecord>(const std::filesystem::path& path)> write;
};
/// Pushes of clients of rows: the leader's file; several servers have further ones.
inline constexpr const char* kPushesFile = "pushes.safetensors";
/// "pushes.safetensors" of the leader (0), "pushes-1.safetensors".
std::string pushes_file_name(std::size_t server);
bool is_pushes_file(const std::string& file);
std::string rows_file_name(const std::string& table);
/// Nothing if it is not the name of a table's file.
std::optional<std::string> table_of_rows_file(const std::string& file);

/// How a folder of checkpoints is written and pruned.
struct CheckpointPolicy {
  std::size_t keep = 3;  ///< number of newest ones to retain; 0: all
  std::uint64_t keep_every_rounds =
      0;  ///< those whose round is a multiple are retained too; 0: none
  /// Largest file. A larger model is written as several with an index, as Hugging Face libraries do
  /// (shards.h); 0: always one.
  std::uint64_t shard_bytes = 0;
  /// Called with each checkpoint that `write` deletes because of `keep`.
  std::function<void(const CheckpointEntry&)> on_pruned = {};
  /// True protects a checkpoint from deletion because of `keep`, until the next `write`.
  std::function<bool(const CheckpointEntry&)> is_in_use = {};
  /// Called before a checkpoint begins and before it gets its name; an error stops it.
  std::function<Status()> may_write = {};
  /// No other writer may exist: `open` removes its unfinished checkpoint, so that it fails.
  bool is_sole = false;
};

/// Directory of checkpoints, newest wins. Blocking I/O: run it on a blocking executor. One writer
/// at a time; others may read meanwhile, through its `reader` or a `view` of their own. Damage
/// found by one read counts for all readers, until the files change or a later read finds them
/// sound.
class CheckpointDirectory {
 public:
  /// Create the directory if it is missing, and remove temporary leftovers of a crash (never those
  /// of a live writer, which has a lock).
  static Result<CheckpointDirectory> open(const std::filesystem::path& root,
                                          const CheckpointPolicy& policy);
  static Result<CheckpointDirectory> open(const std::filesystem::path& root, std::size_t keep) {
    CheckpointPolicy policy;
    policy.keep = keep;
    return open(root, policy);
  }

  /// For reading: creates and removes nothing.
  /// fails  not_found: no such folder.
  static Result<CheckpointDirectory> view(const std::filesystem::path& root);

  /// For reading, on any thread beside this one; both share what they find damaged.
  CheckpointDirectory reader() const;

  /// The checkpoint in this folder itself, by its name or its manifest; `verify` as in `list`.
  /// Nothing if it is none.
  static std::optional<CheckpointEntry> look_at(const std::filesystem::path& folder, bool verify);

  /// Write a checkpoint: temporary name, every file fsynced, rename, fsync of the directory. Then
  /// delete the oldest beyond the policy. A failure removes the temporary directory and does not
  /// touch older checkpoints. A damaged checkpoint of the same version is replaced.
  /// fails  already_exists: a sound one of that version exists, and there are no `parts` (with
  ///        parts, which change between versions, it gets the next number); resource_exhausted:
  ///        full disk; invalid_argument: a tensor that is not f32, slot names that are empty or
  ///        appear twice.
  Result<CheckpointEntry> write(const CheckpointInfo& info, const Manifest& manifest,
                                const PlaneReader& read,
                                const std::vector<CheckpointPart>& parts = {});
  /// The same with model and optimizer files that `fill` writes into the folder, such as the parts
  /// of several ranks (pieces.h). It adds them to `files`, and sets `tensors`; the rest is there.
  using Fill =
      std::function<Status(const std::filesystem::path& folder, CheckpointManifest& content)>;
  Result<CheckpointEntry> write(const CheckpointInfo& info, const Fill& fill);
  /// All, newest first, each with its size; `verify` also reads every file and checks sizes and
  /// CRC-32C. Checkpoints that are deleted meanwhile are left out. Fails: the folder is unreadable.
  Result<std::vector<CheckpointEntry>> entries(bool verify) const;
  /// `entries` for displays: none if the folder is unreadable.
  std::vector<CheckpointEntry> list(bool verify) const;
  /// The newest that verifies. Reports refused ones through `on_refused` (path, reason).
  /// fails  not_found: there is none; unavailable: a newer one, or the folder, is unreadable
  Result<CheckpointEntry> newest_valid(
      const std::function<void(const CheckpointEntry&)>& on_refused) const;
  /// Load a verified checkpoint. Checksums are compared again (data_loss: discard what was
  /// written).
  /// fails  failed_precondition if its manifest differs from `manifest` (names both shapes).
  Status read(const CheckpointEntry& entry, const Manifest& manifest,
              const PlaneWriter& write) const;
  /// The tensors of a checkpoint.
  Result<Manifest> manifest_of(const CheckpointEntry& entry) const;
  /// Names of its files that are parts.
  Result<std::vector<std::string>> parts_of(const CheckpointEntry& entry) const;

  /// The files in its manifest, the model's first.
  Result<std::vector<CheckpointFile>> files(const CheckpointEntry& entry) const;
  /// The newest of that version; `verify` as in `list`.
  /// fails  not_found, also if it is deleted meanwhile
  Result<CheckpointEntry> find(Version version, bool verify) const;
  /// Delete one. A crash leaves it complete or deleted.
  Status remove(const CheckpointEntry& entry) const;
  /// Applies from the next `write` on.
  void set_keep(std::size_t keep, std::uint64_t keep_every_rounds) {
    policy_.keep = keep, policy_.keep_every_rounds = keep_every_rounds;
  }

  const std::filesystem::path& root() const { return root_; }

 private:
  Status write_files(const std::filesystem::path& directory, CheckpointManifest& content,
                     const Manifest& manifest, const PlaneReader& read,
                     const std::vector<CheckpointPart>& parts) const;
  Result<CheckpointEntry> write_place(const CheckpointInfo& info, Place place, const Fill& fill);
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
