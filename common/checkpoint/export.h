#pragma once

#include <cstdint>
#include <filesystem>

#include "common/checkpoint/checkpoint.h"

namespace centroid {

struct ExportOptions {
  DType dtype = DType::kF32;      ///< kF32, kF16 or kBF16, rounded to nearest even
  std::uint64_t shard_bytes = 0;  ///< largest file; 0: one file
};

/// Write the parameters of a verified checkpoint as `target` (NAME.safetensors), or with shards as
/// NAME-00001-of-0000N.safetensors with an index. Checksums are compared; a failure removes the
/// unfinished last file.
/// fails  already_exists: the target exists
Status export_checkpoint(const CheckpointDirectory& directory, const CheckpointEntry& entry,
                         const std::filesystem::path& target, const ExportOptions& options);

/// Write the rows of one table of a verified checkpoint as `target` (NAME.safetensors): `keys`
/// [rows] i64 (the same 64 bits), `values` [rows, dim] f32, in one order. With `all` also the
/// server's other data of a row (docs/how-to/recover.md#files-of-a-checkpoint).
/// fails  not_found: no such table (names the existing ones); already_exists
Status export_rows(const CheckpointDirectory& directory, const CheckpointEntry& entry,
                   const std::string& table, const std::filesystem::path& target, bool all);

}  // namespace centroid
