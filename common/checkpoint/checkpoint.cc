#include "common/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "common/base/crc32c.h"
#include "common/base/log.h"
#include "common/checkpoint/fault_point.h"
#include "common/checkpoint/inspect.h"
#include "common/checkpoint/known_problems.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/pieces.h"
#include "common/checkpoint/place.h"
#include "common/checkpoint/range_reader.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/storage/file.h"
#include "common/tensor/buffer.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::size_t kPieceElements = std::size_t{256} << 10;  // 1 MiB

fs::path temporary_path(const fs::path& root, const std::string& what) {
  static std::atomic<std::uint64_t> counter{0};
  return root / (std::string(kTemporaryPrefix) + what + "-" + std::to_string(::getpid()) + "-" +
                 std::to_string(counter.fetch_add(1)));
}

Status check_input(const CheckpointInfo& info, const Manifest& manifest) {
  if (info.version.value == 0) {
    if (manifest.empty() && info.slot_names.empty()) return {};
    return Error(ErrorCode::kInvalidArgument, "version 0 is that of a checkpoint without a model");
  }
  CENTROID_TRY(validate(manifest));
  for (const TensorInfo& tensor : manifest)
    if (tensor.dtype != DType::kF32)
      return Error(ErrorCode::kInvalidArgument, "tensor \"" + printable(tensor.name) +
                                                    "\": a checkpoint stores f32, not " +
                                                    std::string(to_string(tensor.dtype)));
  std::set<std::string> slots;
  for (const std::string& slot : info.slot_names)
    if (slot.empty() || slot.find('/') != std::string::npos || !slots.insert(slot).second)
      return Error(ErrorCode::kInvalidArgument,
                   "slot_names: \"" + printable(slot) + "\" is empty, double or contains '/'");
  return {};
}

Status write_planes(const fs::path& folder, const std::string& stem, const Manifest& manifest,
                    std::size_t first_plane, std::size_t planes, std::uint64_t plane_elements,
                    std::uint64_t shard_bytes, const PlaneReader& read,
                    std::map<std::string, FileRecord>& files) {
  CENTROID_ASSIGN(ShardedWriter writer, ShardedWriter::create(folder, stem, manifest, shard_bytes));
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
  CENTROID_ASSIGN(auto written, writer.finish());
  files.merge(written);
  return {};
}

/// A reader of a checkpoint that is being deleted sees missing files.
bool is_deleted(const CheckpointEntry& entry) {
  if (entry.problem.empty()) return false;
  const auto there = file::attributes_of(entry.path);
  return there.ok() && !*there;
}

/// The tensors of several files, one after another.
Result<Manifest> manifest_in(const fs::path& folder, const std::vector<std::string>& files) {
  Manifest all;
  for (const std::string& name : files) {
    CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(folder / name));
    all.insert(all.end(), reader.manifest().begin(), reader.manifest().end());
  }
  return all;
}

/// Returns the elements of planes in order, in pieces that end with a file or a plane.
class PlaneFeed {
 public:
  PlaneFeed(std::size_t first_plane, std::uint64_t plane_elements, const PlaneWriter& write)
      : plane_(first_plane), plane_elements_(plane_elements), write_(write) {}

  std::uint64_t rest_of_plane() const { return plane_elements_ - at_; }
  Status give(std::span<const float> piece) {
    CENTROID_TRY(write_(plane_, at_, piece));
    at_ += piece.size();
    if (at_ == plane_elements_) {
      at_ = 0;
      ++plane_;
    }
    return {};
  }

 private:
  std::size_t plane_;
  const std::uint64_t plane_elements_;
  std::uint64_t at_ = 0;
  const PlaneWriter& write_;
};

Status read_file(const fs::path& path, const FileRecord& record, PlaneFeed& feed) {
  std::uint64_t data_bytes = 0;
  {
    CENTROID_ASSIGN(const SafetensorsReader reader, SafetensorsReader::open(path));
    for (const TensorInfo& tensor : reader.manifest()) data_bytes += tensor.bytes();
  }
  CENTROID_ASSIGN(const file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(const std::uint64_t bytes, file::size_of(file, path));
  if (bytes != record.bytes || bytes < data_bytes)
    return Error(ErrorCode::kDataLoss, path.string() + ": size changed while it was read");

  std::vector<std::byte> header(static_cast<std::size_t>(bytes - data_bytes));
  CENTROID_TRY(file::read_at(file, path, 0, header));
  std::uint32_t crc = crc32c(header);
  std::uint64_t position = header.size();
  const Buffer buffer(kPieceElements * sizeof(float));
  while (position < bytes) {
    const std::uint64_t elements = std::min(
        {std::uint64_t{kPieceElements}, feed.rest_of_plane(), (bytes - position) / sizeof(float)});
    const std::span<float> piece = buffer.as<float>().first(static_cast<std::size_t>(elements));
    CENTROID_TRY(file::read_at(file, path, position, std::as_writable_bytes(piece)));
    crc = crc32c(std::as_bytes(piece), crc);
    position += piece.size_bytes();
    CENTROID_TRY(feed.give(piece));
  }
  if (crc != record.crc32c)
    return Error(ErrorCode::kDataLoss,
                 path.string() + ": CRC-32C differs from manifest.json: altered");
  return {};
}

Status read_planes(const fs::path& folder, const CheckpointManifest& content,
                   const std::string& stem, const Manifest& expected, std::size_t first_plane,
                   std::size_t planes, const PlaneWriter& write) {
  CENTROID_ASSIGN(const auto files, files_of(content, stem));
  CENTROID_ASSIGN(const Manifest found, manifest_in(folder, files));
  const std::string difference = describe_difference(expected, found);
  if (!difference.empty())
    return Error(
        ErrorCode::kFailedPrecondition,
        (folder / files.front()).string() + " contains another model (theirs): " + difference);
  PlaneFeed feed(first_plane, elements_of(expected) / planes, write);
  for (const std::string& name : files)
    CENTROID_TRY(read_file(folder / name, content.files.at(name), feed));
  return {};
}

/// The same for files with pieces of tensors, in the order of planes.
Status read_pieces(const fs::path& folder, const CheckpointManifest& content,
                   const Manifest& expected, const PlaneWriter& write) {
  CENTROID_ASSIGN(RangeReader reader, RangeReader::open(folder, content));
  const std::string difference = describe_difference(expected, reader.manifest());
  if (!difference.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 folder.string() + " contains another model (theirs): " + difference);
  for (const auto& [name, record] : content.files) CENTROID_TRY(check_bytes(folder / name, record));
  const Buffer buffer(kPieceElements * sizeof(float));
  const std::uint64_t elements = elements_of(expected);
  for (std::size_t plane = 0; plane <= content.info.slot_names.size(); ++plane) {
    for (std::uint64_t at = 0; at < elements; at += kPieceElements) {
      const std::span<float> piece = buffer.as<float>().first(
          static_cast<std::size_t>(std::min<std::uint64_t>(kPieceElements, elements - at)));
      CENTROID_TRY(reader.read(plane, at, piece));
      CENTROID_TRY(write(plane, at, piece));
    }
  }
  return {};
}

/// All files of a checkpoint, manifest.json last.
Status write_manifest(const fs::path& folder, const CheckpointInfo& info,
                      const CheckpointDirectory::Fill& fill) {
  CheckpointManifest content;
  content.info = info;
  CENTROID_TRY(fill(folder, content));
  CENTROID_ASSIGN(const std::string text, to_json(content));
  if (text.size() > kMaxManifestBytes)
    return Error(ErrorCode::kResourceExhausted,
                 "manifest.json would have " + std::to_string(text.size()) +
                     " bytes, the limit is " + std::to_string(kMaxManifestBytes));
  CENTROID_TRY(write_text_file(folder / kManifestFile, text));
  fault::point("checkpoint.manifest_written");
  return file::sync_directory(folder);
}

void remove_leftovers(const fs::path& root, bool also_locked) {
  const auto entries = file::list(root);
  if (!entries.ok()) return;
  for (const file::Entry& entry : *entries) {
    if (!entry.name.starts_with(kTemporaryPrefix)) continue;
    const fs::path path = root / entry.name;
    const auto lock = file::lock_directory(path);
    const bool is_alive = !lock.ok() && lock.error().code() == ErrorCode::kAborted;  // its writer
    if (is_alive && !also_locked) continue;
    (void)file::remove_all(path);
    log::warn("checkpoint.leftover_removed", {{"path", path.string()}});
  }
}

}  // namespace

Result<CheckpointDirectory> CheckpointDirectory::open(const fs::path& root,
                                                      const CheckpointPolicy& policy) {
  std::error_code error;
  const bool is_new = file::create_directories(root, error);
  if (error || !file::is_directory(root))
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint directory " + root.string() + ": " +
                     (error ? error.message() : std::string("not a directory")));
  CheckpointDirectory directory;
  directory.root_ = fs::absolute(root);
  directory.policy_ = policy;
  directory.known_ = std::make_shared<KnownProblems>();
  if (is_new) CENTROID_TRY(file::sync_directory(directory.root_.parent_path()));
  remove_leftovers(directory.root_, policy.is_sole);
  return directory;
}

Result<CheckpointDirectory> CheckpointDirectory::view(const fs::path& root) {
  if (!file::is_directory(root))
    return Error(ErrorCode::kNotFound, root.string() + ": there is no such folder");
  CheckpointDirectory directory;
  directory.root_ = fs::absolute(root);
  directory.known_ = std::make_shared<KnownProblems>();
  return directory;
}

CheckpointDirectory CheckpointDirectory::reader() const {
  CheckpointDirectory directory;
  directory.root_ = root_;
  directory.known_ = known_;
  return directory;
}

CheckpointEntry CheckpointDirectory::look(const fs::path& path, const Place& place,
                                          bool verify) const {
  CheckpointEntry entry = inspect(path, place, verify);
  if (verify)
    known_->note(entry);
  else
    known_->apply(entry);
  return entry;
}

Result<CheckpointEntry> CheckpointDirectory::write(const CheckpointInfo& info,
                                                   const Manifest& manifest,
                                                   const PlaneReader& read,
                                                   const std::vector<CheckpointPart>& parts) {
  CENTROID_TRY(check_input(info, manifest));
  for (const CheckpointPart& part : parts)
    if (!is_part(part.name))
      return Error(ErrorCode::kInvalidArgument,
                   "checkpoint part \"" + printable(part.name) + "\": not a name of one");
  Place place{info.version, 0};
  if (!parts.empty())
    for (const CheckpointEntry& entry : list(false))
      if (entry.version == place.version) place.number = std::max(place.number, entry.number + 1);
  const auto fill = [&](const fs::path& folder, CheckpointManifest& content) {
    return write_files(folder, content, manifest, read, parts);
  };
  return write_place(info, place, fill);
}

Result<CheckpointEntry> CheckpointDirectory::write(const CheckpointInfo& info, const Fill& fill) {
  return write_place(info, {info.version, 0}, fill);
}

Result<CheckpointEntry> CheckpointDirectory::write_place(const CheckpointInfo& info, Place place,
                                                         const Fill& fill) {
  if (policy_.may_write) CENTROID_TRY(policy_.may_write());
  const fs::path target = root_ / directory_name(place);
  if (file::exists(target)) {
    const CheckpointEntry there = look(target, place, true);
    if (there.is_unreadable) return unreadable(there);
    if (there.problem.empty()) {
      CENTROID_TRY(file::sync_directory(root_));  // its writer may have failed behind that
      return Error(ErrorCode::kAlreadyExists,
                   "checkpoint " + target.string() + " is there and sound");
    }
  }

  const fs::path temporary = temporary_path(root_, directory_name(place));
  const std::string doing = "write checkpoint " + target.string();
  Status status = file::create_directory(temporary);
  file::Descriptor lock;  // held until the name is final: others then leave the temporary directory
  if (status.ok()) {
    auto locked = file::lock_directory(temporary);
    if (locked.ok())
      lock = std::move(locked).value();
    else
      status = std::move(locked).error();
  }
  fault::point("checkpoint.folder_made");
  if (status.ok()) status = write_manifest(temporary, info, fill);
  if (status.ok() && policy_.may_write) status = policy_.may_write();
  if (status.ok()) status = publish(temporary, target);
  if (!status.ok()) {
    (void)file::remove_all(temporary);
    return std::move(status).error().with_context(doing);
  }
  fault::point("checkpoint.published");
  CheckpointEntry written = look(target, place, false);
  if (!written.problem.empty() && !written.is_unreadable)  // those before it are needed
    return Error(ErrorCode::kDataLoss, doing + ": it cannot be read back: " + written.problem);
  prune();
  return written;
}

Status CheckpointDirectory::write_files(const fs::path& directory, CheckpointManifest& content,
                                        const Manifest& manifest, const PlaneReader& read,
                                        const std::vector<CheckpointPart>& parts) const {
  const CheckpointInfo& info = content.info;
  const std::uint64_t elements = elements_of(manifest);
  for (const CheckpointPart& part : parts) {  // first: their copies are released early
    CENTROID_ASSIGN(content.files[part.name], part.write(directory / part.name));
    fault::point("checkpoint.part_written");
  }
  // Slots first: training changes them before it writes over the parameters.
  if (!info.slot_names.empty())
    CENTROID_TRY(
        write_planes(directory, kOptimizerStem, optimizer_manifest(manifest, info.slot_names), 1,
                     info.slot_names.size(), elements, policy_.shard_bytes, read, content.files));
  if (!manifest.empty())
    CENTROID_TRY(write_planes(directory, kModelStem, manifest, 0, 1, elements, policy_.shard_bytes,
                              read, content.files));
  return {};
}

Status CheckpointDirectory::publish(const fs::path& temporary, const fs::path& target) const {
  const fs::path damaged = temporary_path(root_, "damaged");
  const bool is_replaced = file::exists(target);
  if (is_replaced) CENTROID_TRY(file::rename(target, damaged));
  Status status = file::rename(temporary, target);
  fault::point("checkpoint.renamed");
  if (status.ok()) {
    status = file::sync_directory(root_);
    // The name may not be durable: take it back, so that failure always means "not there".
    if (!status.ok()) (void)file::rename(target, temporary);
  }
  if (is_replaced) (void)(status.ok() ? file::remove_all(damaged) : file::rename(damaged, target));
  return status;
}

void CheckpointDirectory::prune() const {
  if (policy_.keep == 0) return;
  std::size_t sound = 0;
  std::optional<Version> last;  // of a sound one that stays
  for (const CheckpointEntry& entry : list(false)) {
    const bool is_sound = entry.problem.empty();
    const bool is_newest = is_sound && last != entry.version;
    if (is_sound) last = entry.version;
    if (sound < policy_.keep) {
      sound += is_sound ? 1 : 0;
      continue;
    }
    const std::uint64_t every = policy_.keep_every_rounds;
    if (is_newest && entry.version.value > 0 && every > 0 && entry.info.round.value % every == 0)
      continue;
    if (policy_.is_in_use && policy_.is_in_use(entry)) continue;
    const Status removed = remove(entry);
    if (!removed.ok())
      log::warn("checkpoint.prune_failed",
                {{"path", entry.path.string()}, {"reason", removed.error().message()}});
    else if (policy_.on_pruned)
      policy_.on_pruned(entry);
  }
}

Status CheckpointDirectory::remove(const CheckpointEntry& entry) const {
  // Renamed first, so that a crash leaves no incomplete checkpoint.
  const fs::path doomed = temporary_path(root_, "old");
  CENTROID_TRY(file::rename(entry.path, doomed));
  fault::point("checkpoint.old_renamed");
  const Status removed = file::remove_all(doomed);
  if (!removed.ok()) return Error(ErrorCode::kFailedPrecondition, removed.error().message());
  return {};
}

Result<CheckpointEntry> CheckpointDirectory::find(Version version, bool verify) const {
  std::optional<Version> newest;
  CENTROID_ASSIGN(const auto all, entries(false));
  for (const CheckpointEntry& entry : all) {  // newest first
    if (!newest && entry.problem.empty()) newest = entry.version;
    if (entry.version != version) continue;
    CheckpointEntry found = look(entry.path, {version, entry.number}, verify);
    if (!is_deleted(found)) return found;
  }
  return Error(ErrorCode::kNotFound,
               "there is no checkpoint of version " + to_string(version) + " in " + root_.string() +
                   ": checkpoint.keep deleted it, or it was never written; " +
                   (newest ? "the newest is of version " + to_string(*newest) : "there is none"));
}

Result<std::vector<CheckpointFile>> CheckpointDirectory::files(const CheckpointEntry& entry) const {
  CENTROID_ASSIGN(const std::string text, manifest_text(entry.path));
  CENTROID_ASSIGN(const CheckpointManifest content, parse_checkpoint_manifest(text));
  std::vector<CheckpointFile> files;
  for (const auto& [name, record] : content.files)
    files.push_back({name, record.bytes, record.crc32c});
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    const bool first = a.name.starts_with(kModelStem), second = b.name.starts_with(kModelStem);
    return first != second ? first : a.name < b.name;
  });
  files.push_back({kManifestFile, text.size(), crc32c(std::as_bytes(std::span(text)))});
  return files;
}

std::vector<CheckpointEntry> CheckpointDirectory::list(bool verify) const {
  auto found = entries(verify);
  return found.ok() ? std::move(found).value() : std::vector<CheckpointEntry>();
}

Result<std::vector<CheckpointEntry>> CheckpointDirectory::entries(bool verify) const {
  std::vector<CheckpointEntry> entries;
  const auto found = file::list(root_);
  if (!found.ok() && found.error().code() != ErrorCode::kNotFound) return found.error();
  if (!found.ok()) return entries;
  for (const file::Entry& item : *found) {
    const auto place = place_of(item.name);
    if (!place || item.about.kind != file::Kind::kFolder) continue;
    CheckpointEntry entry = look(root_ / item.name, *place, verify);
    if (!is_deleted(entry)) entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.version == b.version ? a.number > b.number : a.version > b.version;
  });
  return entries;
}

std::optional<CheckpointEntry> CheckpointDirectory::look_at(const fs::path& folder, bool verify) {
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ended with '/'
  auto place = place_of(path);
  if (!file::is_directory(path)) return std::nullopt;
  if (!place && !file::exists(path / kManifestFile)) return std::nullopt;
  if (!place) {  // a renamed copy: its manifest counts, if it is readable
    const auto manifest = read_manifest(path);
    place.emplace();
    if (manifest.ok()) place->version = manifest->info.version;
  }
  return inspect(path, *place, verify);
}

Error unreadable(const CheckpointEntry& entry) {
  return Error(ErrorCode::kUnavailable,
               "checkpoint " + entry.path.string() + " is unreadable: " + entry.problem +
                   ". If that remains, move it away to go on from an older one");
}

Result<CheckpointEntry> CheckpointDirectory::newest_valid(
    const std::function<void(const CheckpointEntry&)>& on_refused) const {
  CENTROID_ASSIGN(const auto all, entries(false));
  for (const CheckpointEntry& seen : all) {
    const CheckpointEntry entry = look(seen.path, {seen.version, seen.number}, true);
    if (entry.problem.empty()) return entry;
    if (entry.is_unreadable) return unreadable(entry);
    if (on_refused) on_refused(entry);
  }
  return Error(ErrorCode::kNotFound, "no valid checkpoint in " + root_.string());
}

Status CheckpointDirectory::read(const CheckpointEntry& entry, const Manifest& manifest,
                                 const PlaneWriter& write) const {
  const Status status = read_values(entry, manifest, write);
  if (!status.ok() && status.error().code() == ErrorCode::kDataLoss) {
    CheckpointEntry damaged = entry;
    damaged.problem = status.error().message();
    known_->note(damaged);
  }
  return status;
}

Status CheckpointDirectory::read_values(const CheckpointEntry& entry, const Manifest& manifest,
                                        const PlaneWriter& write) {
  if (!entry.problem.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " is refused: " + entry.problem);
  CENTROID_TRY(check_input(entry.info, manifest));
  if (manifest.empty()) return {};
  fault::point("checkpoint.reading");
  CENTROID_ASSIGN(CheckpointManifest content, read_manifest(entry.path));
  if (!content.tensors.empty()) return read_pieces(entry.path, content, manifest, write);
  CENTROID_TRY(read_planes(entry.path, content, kModelStem, manifest, 0, 1, write));
  const std::vector<std::string>& slots = content.info.slot_names;
  if (slots.empty()) return {};
  return read_planes(entry.path, content, kOptimizerStem, optimizer_manifest(manifest, slots), 1,
                     slots.size(), write);
}

Result<Manifest> CheckpointDirectory::manifest_of(const CheckpointEntry& entry) const {
  CENTROID_ASSIGN(const CheckpointManifest content, read_manifest(entry.path));
  if (content.info.version.value == 0) return Manifest();
  if (!content.tensors.empty()) return content.tensors;
  CENTROID_ASSIGN(const auto files, files_of(content, kModelStem));
  return manifest_in(entry.path, files);
}

Result<std::vector<std::string>> CheckpointDirectory::parts_of(const CheckpointEntry& entry) const {
  CENTROID_ASSIGN(const CheckpointManifest content, read_manifest(entry.path));
  std::vector<std::string> parts;
  for (const auto& [name, record] : content.files)
    if (is_part(name)) parts.push_back(name);
  return parts;
}

}  // namespace centroid
