#include "common/checkpoint/inspect.h"

#include <set>

#include "common/base/random.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/storage/file.h"

namespace centroid {

namespace fs = std::filesystem;

namespace {

Status check_names(const CheckpointManifest& manifest) {
  std::size_t expected = 0;
  for (const auto& [name, record] : manifest.files) expected += is_part(name) ? 1 : 0;
  for (const char* const stem : {kModelStem, kOptimizerStem}) {
    if (manifest.info.version.value == 0) continue;
    if (stem == kOptimizerStem && manifest.info.slot_names.empty()) continue;
    CENTROID_ASSIGN(const auto files, files_of(manifest, stem));
    expected += files.size() + (files.size() > 1 ? 1 : 0);
  }
  if (expected != manifest.files.size())
    return Error(ErrorCode::kDataLoss, "manifest.json: field \"files\": more than there must be");
  return {};
}

Result<std::uint64_t> stamp_at(const fs::path& path) {
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  return file::stamp_of(file, path);
}

/// Adds to `stamp`.
Status check_size(const fs::path& path, const FileRecord& record, std::uint64_t& stamp) {
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, file::size_of(file, path));
  if (bytes != record.bytes)
    return Error(ErrorCode::kDataLoss, path.filename().string() + ": " + std::to_string(bytes) +
                                           " bytes, manifest.json expects " +
                                           std::to_string(record.bytes));
  CENTROID_ASSIGN(const std::uint64_t own, file::stamp_of(file, path));
  stamp = mix64(stamp, own);
  return {};
}

Status check_entry(CheckpointEntry& entry, bool verify) {
  // Before anything is read, so that the result never counts for later bytes.
  CENTROID_ASSIGN(std::uint64_t stamp, stamp_at(entry.path / kManifestFile));
  CENTROID_ASSIGN(const CheckpointManifest manifest, read_manifest(entry.path));
  entry.info = manifest.info;
  if (entry.info.version != entry.version)
    return Error(ErrorCode::kDataLoss,
                 "manifest.json: field \"version\": " + to_string(entry.info.version) +
                     " does not fit the directory's name");
  CENTROID_TRY(check_names(manifest));
  for (const auto& [name, record] : manifest.files)
    CENTROID_TRY(check_size(entry.path / name, record, stamp));
  entry.stamp = stamp;
  if (!verify) return {};
  for (const auto& [name, record] : manifest.files)
    CENTROID_TRY(check_bytes(entry.path / name, record));
  return {};
}

}  // namespace

Status check_bytes(const fs::path& path, const FileRecord& record) {
  fault::point("checkpoint.verifying");
  CENTROID_ASSIGN(const std::uint32_t crc, file_crc32c(path));
  if (crc != record.crc32c)
    return Error(ErrorCode::kDataLoss,
                 path.filename().string() + ": CRC-32C differs from manifest.json: altered");
  return {};
}

Result<std::string> manifest_text(const fs::path& directory) {
  const fs::path path = directory / kManifestFile;
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, file::size_of(file, path));
  if (bytes > kMaxManifestBytes)
    return Error(ErrorCode::kDataLoss, "manifest.json: " + std::to_string(bytes) +
                                           " bytes, the limit is " +
                                           std::to_string(kMaxManifestBytes));
  std::string text(static_cast<std::size_t>(bytes), '\0');
  CENTROID_TRY(
      file::read_at(file, path, 0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

Result<CheckpointManifest> read_manifest(const fs::path& directory) {
  CENTROID_ASSIGN(const std::string text, manifest_text(directory));
  return parse_checkpoint_manifest(text);
}

Result<std::vector<std::string>> files_of(const CheckpointManifest& manifest,
                                          const std::string& stem) {
  std::set<std::string> names;
  for (const auto& [name, record] : manifest.files) names.insert(name);
  auto found = shards_among(names, stem);
  if (!found)
    return Error(ErrorCode::kDataLoss, "manifest.json: field \"files\": not all of " + stem +
                                           ".safetensors or of its parts and their index");
  return *found;
}

bool is_part(const std::string& file) {
  return is_pushes_file(file) || table_of_rows_file(file).has_value();
}

CheckpointEntry inspect(const fs::path& path, const Place& place, bool verify) {
  CheckpointEntry entry;
  entry.path = path;
  entry.version = place.version;
  entry.number = place.number;
  if (const auto files = file::list(path); files.ok())
    for (const file::Entry& file : *files)
      if (file.about.kind == file::Kind::kFile) entry.bytes += file.about.bytes;
  if (const Status status = check_entry(entry, verify); !status.ok()) {
    entry.problem = status.error().message();
    const ErrorCode code = status.error().code();
    // No fault of these bytes, for example too many open files, or a later format.
    entry.is_unreadable = code == ErrorCode::kUnavailable ||
                          code == ErrorCode::kResourceExhausted ||
                          code == ErrorCode::kUnimplemented;
    if (code != ErrorCode::kDataLoss) entry.stamp = 0;
  }
  return entry;
}

}  // namespace centroid
