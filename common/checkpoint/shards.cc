#include "common/checkpoint/shards.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/base/crc32c.h"
#include "common/checkpoint/fault_point.h"
#include "common/storage/file.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::size_t kMaxShards = 99999;

}  // namespace

std::string shard_file_name(const std::string& stem, std::size_t index, std::size_t count) {
  if (count == 1) return stem + std::string(kSuffix);
  char text[32];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu", index + 1, count);
  return stem + text + std::string(kSuffix);
}

std::string shard_index_name(const std::string& stem) {
  return stem + std::string(kSuffix) + ".index.json";
}

std::optional<std::vector<std::string>> shards_among(const std::set<std::string>& names,
                                                     const std::string& stem) {
  if (names.contains(stem + std::string(kSuffix))) return std::vector{stem + std::string(kSuffix)};
  const std::string first = stem + "-00001-of-";
  const auto found = names.lower_bound(first);
  if (found == names.end() || !found->starts_with(first) || found->size() < first.size() + 5)
    return std::nullopt;
  std::size_t count = 0;
  for (const char digit : found->substr(first.size(), 5)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    count = 10 * count + static_cast<std::size_t>(digit - '0');
  }
  if (count < 2 || !names.contains(shard_index_name(stem))) return std::nullopt;
  std::vector<std::string> shards;
  for (std::size_t i = 0; i < count; ++i) {
    shards.push_back(shard_file_name(stem, i, count));
    if (!names.contains(shards.back())) return std::nullopt;
  }
  return shards;
}

Result<ShardedWriter> ShardedWriter::create(const fs::path& folder, const std::string& stem,
                                            const Manifest& manifest, std::uint64_t max_bytes) {
  ShardedWriter writer;
  writer.folder_ = folder;
  writer.stem_ = stem;
  writer.shards_.emplace_back();
  for (const TensorInfo& tensor : manifest) {
    const std::uint64_t bytes = tensor.bytes();
    Shard& last = writer.shards_.back();
    const bool is_full = max_bytes > 0 && !last.tensors.empty() && last.bytes > 0 &&
                         (last.bytes >= max_bytes || bytes > max_bytes - last.bytes);
    Shard& into = is_full && bytes > 0 ? writer.shards_.emplace_back() : last;
    into.tensors.push_back(tensor);
    into.bytes += bytes;
  }
  if (writer.shards_.size() > kMaxShards)
    return Error(ErrorCode::kInvalidArgument,
                 "write " + (folder / stem).string() + ": " +
                     std::to_string(writer.shards_.size()) +
                     " files, at most 99999 can be named: allow larger ones");
  for (std::size_t i = 0; i < writer.shards_.size(); ++i)
    writer.shards_[i].name = shard_file_name(stem, i, writer.shards_.size());
  CENTROID_TRY(writer.begin_file());
  return writer;
}

Status ShardedWriter::begin_file() {
  const Shard& shard = shards_[next_++];
  // "pt" is PyTorch: from_pretrained of Hugging Face refuses other files.
  CENTROID_ASSIGN(
      SafetensorsWriter file,
      SafetensorsWriter::create(folder_ / shard.name, shard.tensors, {{"format", "pt"}}));
  open_.reset();
  open_.emplace(std::move(file));
  left_ = shard.bytes;
  return {};
}

Status ShardedWriter::end_file() {
  CENTROID_ASSIGN(written_[shards_[next_ - 1].name], open_->finish());
  fault::point("checkpoint.file_written");
  open_.reset();
  return {};
}

Status ShardedWriter::append(Bytes bytes) {
  while (!bytes.empty()) {
    if (left_ == 0 && next_ < shards_.size()) {
      CENTROID_TRY(end_file());
      CENTROID_TRY(begin_file());
    }
    const std::size_t part =
        left_ == 0 ? bytes.size()  // too many: the file's writer says so
                   : static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
    CENTROID_TRY(open_->append(bytes.first(part)));
    left_ -= part;
    bytes = bytes.subspan(part);
  }
  return {};
}

Result<std::map<std::string, FileRecord>> ShardedWriter::finish() {
  CENTROID_TRY(end_file());
  if (next_ != shards_.size())
    return Error(ErrorCode::kFailedPrecondition,
                 "write " + (folder_ / stem_).string() + ": tensors are missing");
  if (shards_.size() > 1) CENTROID_TRY(write_index());
  return written_;
}

Status ShardedWriter::write_index() {
  std::vector<Manifest> files;
  for (const Shard& shard : shards_) files.push_back(shard.tensors);
  CENTROID_ASSIGN(written_[shard_index_name(stem_)], write_shard_index(folder_, stem_, files));
  return {};
}

Result<FileRecord> write_shard_index(const fs::path& folder, const std::string& stem,
                                     const std::vector<Manifest>& files) {
  const std::string name = shard_index_name(stem);
  std::string text;
  try {
    nlohmann::json json;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string file = shard_file_name(stem, i, files.size());
      for (const TensorInfo& tensor : files[i]) {
        total += tensor.bytes();
        json["weight_map"][tensor.name] = file;
      }
    }
    json["metadata"]["total_size"] = total;
    text = json.dump(2) + "\n";
  } catch (const nlohmann::json::exception& why) {
    return Error(ErrorCode::kInvalidArgument, name + ": " + why.what());
  }
  CENTROID_TRY(write_text_file(folder / name, text));
  fault::point("checkpoint.index_written");
  return FileRecord{text.size(), crc32c(as_bytes(text))};
}

Status write_text_file(const fs::path& path, const std::string& text) {
  CENTROID_ASSIGN(file::Descriptor file, file::create(path));
  CENTROID_TRY(file::write_all(file, path, as_bytes(text)));
  CENTROID_TRY(file::sync(file, path));
  return file::close(std::move(file), path);
}

}  // namespace centroid
