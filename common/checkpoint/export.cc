#include "common/checkpoint/export.h"

#include <vector>

#include "common/checkpoint/file.h"
#include "common/checkpoint/shards.h"

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

}  // namespace centroid
