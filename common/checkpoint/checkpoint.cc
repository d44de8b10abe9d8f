#include "common/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <set>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/file.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/buffer.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kManifestFile = "manifest.json";
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{16} << 20;
constexpr std::size_t kPieceElements = std::size_t{256} << 10;  // 1 MiB

std::string directory_name(Version version) {
  std::string digits = std::to_string(version.value);
  if (digits.size() < 12) digits.insert(0, 12 - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

std::optional<Version> version_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  Version version;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), version.value);
  if (name != directory_name(version)) return std::nullopt;
  return version;
}

fs::path temporary_path(const fs::path& root, const std::string& what) {
  static std::atomic<std::uint64_t> counter{0};
  return root / (std::string(kTemporaryPrefix) + what + "-" + std::to_string(::getpid()) + "-" +
                 std::to_string(counter.fetch_add(1)));
}

std::uint64_t elements_of(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) total += tensor.elements();
  return total;
}

// Every slot is a plane of all tensors: "exp_avg/layer.weight".
Manifest optimizer_manifest(const Manifest& manifest, const std::vector<std::string>& slots) {
  Manifest out;
  out.reserve(manifest.size() * slots.size());
  for (const std::string& slot : slots) {
    for (const TensorInfo& tensor : manifest) {
      TensorInfo info = tensor;
      info.name = slot + '/' + tensor.name;
      out.push_back(std::move(info));
    }
  }
  return out;
}

Status check_input(const CheckpointInfo& info, const Manifest& manifest) {
  CENTROID_TRY(validate(manifest));
  for (const TensorInfo& tensor : manifest)
    if (tensor.dtype != DType::kF32)
      return Error(ErrorCode::kInvalidArgument, "tensor \"" + printable(tensor.name) +
                                                    "\": a checkpoint holds f32, not " +
                                                    std::string(to_string(tensor.dtype)));
  std::set<std::string> slots;
  for (const std::string& slot : info.slot_names)
    if (slot.empty() || slot.find('/') != std::string::npos || !slots.insert(slot).second)
      return Error(ErrorCode::kInvalidArgument,
                   "slot_names: \"" + printable(slot) + "\" is empty, double or contains '/'");
  return {};
}

Result<FileRecord> write_planes(const fs::path& path, const Manifest& manifest,
                                std::size_t first_plane, std::size_t planes,
                                std::uint64_t plane_elements, const PlaneReader& read) {
  CENTROID_ASSIGN(SafetensorsWriter writer,
                  SafetensorsWriter::create(path, manifest, {{"format", "centroid"}}));
  const Buffer buffer(kPieceElements * sizeof(float));
  for (std::size_t plane = first_plane; plane < first_plane + planes; ++plane) {
    for (std::uint64_t at = 0; at < plane_elements; at += kPieceElements) {
      const std::span<float> piece = buffer.as<float>().first(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPieceElements, plane_elements - at)));
      CENTROID_TRY(read(plane, at, piece));
      CENTROID_TRY(writer.append(std::as_bytes(piece)));
      fault::point("checkpoint.file_torn");
    }
  }
  CENTROID_ASSIGN(const auto written, writer.finish());
  fault::point("checkpoint.file_written");
  FileRecord record;
  record.bytes = written.bytes;
  record.crc32c = written.crc32c;
  return record;
}

Status write_text(const fs::path& path, const std::string& text) {
  CENTROID_ASSIGN(file::Descriptor file, file::create(path));
  CENTROID_TRY(file::write_all(file, path, as_bytes(text)));
  CENTROID_TRY(file::sync(file, path));
  return file::close(std::move(file), path);
}

Result<CheckpointManifest> read_manifest(const fs::path& directory) {
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
  return parse_checkpoint_manifest(text);
}

std::set<std::string> expected_files(const CheckpointInfo& info) {
  std::set<std::string> names = {kModelFile};
  if (!info.slot_names.empty()) names.insert(kOptimizerFile);
  return names;
}

Status check_file(const fs::path& path, const FileRecord& record, bool verify) {
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, file::size_of(file, path));
  if (bytes != record.bytes)
    return Error(ErrorCode::kDataLoss, path.filename().string() + ": " + std::to_string(bytes) +
                                           " bytes, manifest.json says " +
                                           std::to_string(record.bytes));
  if (!verify) return {};
  CENTROID_ASSIGN(const std::uint32_t crc, file_crc32c(path));
  if (crc != record.crc32c)
    return Error(ErrorCode::kDataLoss,
                 path.filename().string() + ": CRC-32C differs from manifest.json: altered");
  return {};
}

Status check_entry(CheckpointEntry& entry, bool verify) {
  CENTROID_ASSIGN(CheckpointManifest manifest, read_manifest(entry.path));
  entry.info = std::move(manifest.info);
  if (entry.info.version != entry.version)
    return Error(ErrorCode::kDataLoss,
                 "manifest.json: field \"version\": " + to_string(entry.info.version) +
                     " does not fit the directory's name");
  std::set<std::string> names;
  for (const auto& [name, record] : manifest.files) names.insert(name);
  if (names != expected_files(entry.info))
    return Error(ErrorCode::kDataLoss,
                 "manifest.json: field \"files\": not the files there must be");
  for (const auto& [name, record] : manifest.files)
    CENTROID_TRY(check_file(entry.path / name, record, verify));
  return {};
}

CheckpointEntry inspect(const fs::path& path, Version version, bool verify) {
  CheckpointEntry entry;
  entry.path = path;
  entry.version = version;
  for (const char* name : {kModelFile, kOptimizerFile, kManifestFile}) {
    std::error_code error;
    const auto bytes = fs::file_size(path / name, error);
    if (!error) entry.bytes += bytes;
  }
  if (const Status status = check_entry(entry, verify); !status.ok())
    entry.problem = status.error().message();
  return entry;
}

Status read_planes(const fs::path& path, const FileRecord& record, const Manifest& expected,
                   std::size_t first_plane, std::size_t planes, const PlaneWriter& write) {
  {
    CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(path));
    const std::string difference = describe_difference(expected, reader.manifest());
    if (!difference.empty())
      return Error(ErrorCode::kFailedPrecondition,
                   path.string() + " holds another model (theirs): " + difference);
  }
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, file::size_of(file, path));
  const std::uint64_t plane_elements = elements_of(expected) / planes;
  const std::uint64_t data_bytes = plane_elements * planes * sizeof(float);
  if (bytes != record.bytes || bytes < data_bytes)
    return Error(ErrorCode::kDataLoss, path.string() + ": size changed while it was read");

  std::vector<std::byte> header(static_cast<std::size_t>(bytes - data_bytes));
  CENTROID_TRY(file::read_at(file, path, 0, header));
  std::uint32_t crc = crc32c(header);
  std::uint64_t position = header.size();
  const Buffer buffer(kPieceElements * sizeof(float));
  for (std::size_t plane = first_plane; plane < first_plane + planes; ++plane) {
    for (std::uint64_t at = 0; at < plane_elements; at += kPieceElements) {
      const std::span<float> piece = buffer.as<float>().first(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPieceElements, plane_elements - at)));
      CENTROID_TRY(file::read_at(file, path, position, std::as_writable_bytes(piece)));
      crc = crc32c(std::as_bytes(piece), crc);
      position += piece.size_bytes();
      CENTROID_TRY(write(plane, at, piece));
    }
  }
  if (crc != record.crc32c)
    return Error(ErrorCode::kDataLoss,
                 path.string() + ": CRC-32C differs from manifest.json: altered");
  return {};
}

void remove_leftovers(const fs::path& root) {
  std::error_code ignored;
  std::vector<fs::path> leftovers;
  for (const auto& item : fs::directory_iterator(root, ignored))
    if (item.path().filename().string().starts_with(kTemporaryPrefix))
      leftovers.push_back(item.path());
  for (const fs::path& path : leftovers) {
    const auto lock = file::lock_directory(path);
    if (!lock.ok() && lock.error().code() == ErrorCode::kAborted) continue;  // its writer lives
    fs::remove_all(path, ignored);
    log::warn("checkpoint.leftover_removed", {{"path", path.string()}});
  }
}

}  // namespace

Result<CheckpointDirectory> CheckpointDirectory::open(const fs::path& root, std::size_t keep) {
  std::error_code error;
  const bool is_new = fs::create_directories(root, error);
  if (error || !fs::is_directory(root, error))
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint directory " + root.string() + ": " +
                     (error ? error.message() : std::string("not a directory")));
  CheckpointDirectory directory;
  directory.root_ = fs::absolute(root);
  directory.keep_ = keep;
  if (is_new) CENTROID_TRY(file::sync_directory(directory.root_.parent_path()));
  remove_leftovers(directory.root_);
  return directory;
}

Result<CheckpointDirectory> CheckpointDirectory::view(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error))
    return Error(ErrorCode::kNotFound, root.string() + ": there is no such folder");
  CheckpointDirectory directory;
  directory.root_ = fs::absolute(root);
  return directory;
}

Result<CheckpointEntry> CheckpointDirectory::write(const CheckpointInfo& info,
                                                   const Manifest& manifest,
                                                   const PlaneReader& read) {
  CENTROID_TRY(check_input(info, manifest));
  const fs::path target = root_ / directory_name(info.version);
  if (fs::exists(target) && inspect(target, info.version, true).problem.empty())
    return Error(ErrorCode::kAlreadyExists,
                 "checkpoint " + target.string() + " is there and sound");

  const fs::path temporary = temporary_path(root_, directory_name(info.version));
  const std::string doing = "write checkpoint " + target.string();
  Status status = file::create_directory(temporary);
  file::Descriptor
      lock;  // held until the name is final: others leave the temporary directory alone
  if (status.ok()) {
    auto locked = file::lock_directory(temporary);
    if (locked.ok())
      lock = std::move(locked).value();
    else
      status = std::move(locked).error();
  }
  fault::point("checkpoint.folder_made");
  if (status.ok()) status = write_files(temporary, info, manifest, read);
  if (status.ok()) status = publish(temporary, target);
  if (!status.ok()) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    return std::move(status).error().with_context(doing);
  }
  fault::point("checkpoint.published");
  prune();
  return inspect(target, info.version, false);
}

Status CheckpointDirectory::write_files(const fs::path& directory, const CheckpointInfo& info,
                                        const Manifest& manifest, const PlaneReader& read) const {
  const std::uint64_t elements = elements_of(manifest);
  CheckpointManifest content;
  content.info = info;
  CENTROID_ASSIGN(content.files[kModelFile],
                  write_planes(directory / kModelFile, manifest, 0, 1, elements, read));
  if (!info.slot_names.empty()) {
    CENTROID_ASSIGN(
        content.files[kOptimizerFile],
        write_planes(directory / kOptimizerFile, optimizer_manifest(manifest, info.slot_names), 1,
                     info.slot_names.size(), elements, read));
  }
  CENTROID_ASSIGN(const std::string text, to_json(content));
  CENTROID_TRY(write_text(directory / kManifestFile, text));
  fault::point("checkpoint.manifest_written");
  return file::sync_directory(directory);
}

Status CheckpointDirectory::publish(const fs::path& temporary, const fs::path& target) const {
  std::error_code ignored;
  const fs::path damaged = temporary_path(root_, "damaged");
  const bool is_replaced = fs::exists(target, ignored);
  if (is_replaced) CENTROID_TRY(file::rename(target, damaged));
  Status status = file::rename(temporary, target);
  fault::point("checkpoint.renamed");
  if (status.ok()) {
    status = file::sync_directory(root_);
    // Not known to last: take it back, so that failure always means "not there".
    if (!status.ok()) fs::rename(target, temporary, ignored);
  }
  if (is_replaced) {
    if (status.ok())
      fs::remove_all(damaged, ignored);
    else
      fs::rename(damaged, target, ignored);
  }
  return status;
}

void CheckpointDirectory::prune() const {
  if (keep_ == 0) return;
  std::size_t sound = 0;
  for (const CheckpointEntry& entry : list(false)) {
    if (sound < keep_) {
      sound += entry.problem.empty() ? 1 : 0;
      continue;
    }
    // Renamed first: a crash while its files go leaves no half checkpoint.
    const fs::path doomed = temporary_path(root_, "old");
    const Status renamed = file::rename(entry.path, doomed);
    fault::point("checkpoint.old_renamed");
    std::error_code error;
    if (renamed.ok()) fs::remove_all(doomed, error);
    if (!renamed.ok() || error)
      log::warn("checkpoint.prune_failed",
                {{"path", entry.path.string()},
                 {"reason", renamed.ok() ? error.message() : renamed.error().message()}});
  }
}

std::vector<CheckpointEntry> CheckpointDirectory::list(bool verify) const {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(root_, error)) {
    const auto version = version_of(item.path());
    std::error_code ignored;
    if (version && item.is_directory(ignored))
      entries.push_back(inspect(item.path(), *version, verify));
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.version > b.version; });
  return entries;
}

Result<CheckpointEntry> CheckpointDirectory::newest_valid(
    const std::function<void(const CheckpointEntry&)>& on_refused) const {
  for (const CheckpointEntry& seen : list(false)) {
    CheckpointEntry entry = seen.problem.empty() ? inspect(seen.path, seen.version, true) : seen;
    if (entry.problem.empty()) return entry;
    if (on_refused) on_refused(entry);
  }
  return Error(ErrorCode::kNotFound, "no valid checkpoint in " + root_.string());
}

Status CheckpointDirectory::read(const CheckpointEntry& entry, const Manifest& manifest,
                                 const PlaneWriter& write) const {
  if (!entry.problem.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " is refused: " + entry.problem);
  CENTROID_TRY(check_input(entry.info, manifest));
  CENTROID_ASSIGN(CheckpointManifest content, read_manifest(entry.path));
  CENTROID_TRY(
      read_planes(entry.path / kModelFile, content.files[kModelFile], manifest, 0, 1, write));
  const std::vector<std::string>& slots = content.info.slot_names;
  if (slots.empty()) return {};
  return read_planes(entry.path / kOptimizerFile, content.files[kOptimizerFile],
                     optimizer_manifest(manifest, slots), 1, slots.size(), write);
}

Result<Manifest> CheckpointDirectory::manifest_of(const CheckpointEntry& entry) const {
  CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(entry.path / kModelFile));
  return reader.manifest();
}

}  // namespace centroid
