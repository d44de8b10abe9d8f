#include "common/checkpoint/export.h"

#include <algorithm>
#include <vector>

#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shards.h"
#include "common/storage/file.h"
#include "common/tensor/text.h"

namespace centroid {

Status export_checkpoint(const CheckpointDirectory& directory, const CheckpointEntry& entry,
                         const std::filesystem::path& target, const ExportOptions& options) {
  const bool is_half = options.dtype == DType::kBF16 || options.dtype == DType::kF16;
  if (!is_half && options.dtype != DType::kF32)
    return Error(ErrorCode::kInvalidArgument,
                 "export as " + std::string(to_string(options.dtype)) + ": take f32, bf16 or f16");
  if (target.extension() != ".safetensors")
    return Error(ErrorCode::kInvalidArgument,
                 "export to " + target.string() + ": the name must end in .safetensors");
  CENTROID_ASSIGN(const Manifest manifest, directory.manifest_of(entry));
  if (manifest.empty())
    return Error(ErrorCode::kNotFound,
                 "checkpoint " + entry.path.string() + " has no model, only tables of rows");
  Manifest out = manifest;
  for (TensorInfo& tensor : out) tensor.dtype = options.dtype;
  const std::filesystem::path folder = std::filesystem::absolute(target).parent_path();
  CENTROID_ASSIGN(ShardedWriter writer,
                  ShardedWriter::create(folder, target.stem().string(), out, options.shard_bytes));
  std::vector<std::uint16_t> halves;
  const auto take = [&](std::size_t plane, std::uint64_t, std::span<const float> from) -> Status {
    if (plane > 0) return {};
    if (!is_half) return writer.append(std::as_bytes(from));
    halves.resize(from.size());
    const bool is_bf16 = options.dtype == DType::kBF16;
    for (std::size_t i = 0; i < from.size(); ++i)
      halves[i] = is_bf16 ? bf16_from_f32(from[i]) : f16_from_f32(from[i]);
    return writer.append(std::as_bytes(std::span(halves)));
  };
  CENTROID_TRY(directory.read(entry, manifest, take));
  CENTROID_ASSIGN(const auto written, writer.finish());
  return file::sync_directory(folder);
}

Status export_rows(const CheckpointDirectory& directory, const CheckpointEntry& entry,
                   const std::string& table, const std::filesystem::path& target, bool all) {
  if (!entry.problem.empty())
    return Error(ErrorCode::kFailedPrecondition,
                 "checkpoint " + entry.path.string() + " is refused: " + entry.problem);
  if (target.extension() != ".safetensors")
    return Error(ErrorCode::kInvalidArgument,
                 "export to " + target.string() + ": the name must end in .safetensors");
  CENTROID_ASSIGN(const auto parts, directory.parts_of(entry));
  if (std::ranges::find(parts, rows_file_name(table)) == parts.end()) {
    std::string names;
    for (const std::string& part : parts)
      if (const auto name = table_of_rows_file(part)) names += (names.empty() ? "" : ", ") + *name;
    return Error(ErrorCode::kNotFound, "checkpoint " + entry.path.string() + " has no table '" +
                                           printable(table) + "'; it has " +
                                           (names.empty() ? "none" : names));
  }
  CENTROID_ASSIGN(const SafetensorsReader from,
                  SafetensorsReader::open(entry.path / rows_file_name(table)));
  Manifest tensors;
  for (const TensorInfo& tensor : from.manifest())
    if (all || tensor.name == "keys" || tensor.name == "values") tensors.push_back(tensor);
  CENTROID_ASSIGN(SafetensorsWriter into,
                  SafetensorsWriter::create(target, tensors, from.metadata()));
  std::vector<std::byte> piece;
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  for (const TensorInfo& tensor : tensors)
    for (std::uint64_t at = 0; at < tensor.bytes(); at += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, tensor.bytes() - at)));
      CENTROID_TRY(from.read(tensor.name, at, piece));
      CENTROID_TRY(into.append(piece));
    }
  CENTROID_TRY(into.finish());
  return file::sync_directory(std::filesystem::absolute(target).parent_path());
}

}  // namespace centroid
