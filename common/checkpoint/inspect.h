#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/place.h"

/// Reads a checkpoint's own folder: the manifest, and whether its files match.
namespace centroid {

inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{16} << 20;

Result<std::string> manifest_text(const std::filesystem::path& directory);
Result<CheckpointManifest> read_manifest(const std::filesystem::path& directory);
/// The files of one kind in a manifest, in order.
Result<std::vector<std::string>> files_of(const CheckpointManifest& manifest,
                                          const std::string& stem);
bool is_part(const std::string& file);
/// fails  data_loss: the file's bytes are not those of its record
Status check_bytes(const std::filesystem::path& path, const FileRecord& record);
/// Reads the manifest, and names and sizes of the other files; with `verify` also all of their
/// bytes, if names and sizes are right.
CheckpointEntry inspect(const std::filesystem::path& path, const Place& place, bool verify);

}  // namespace centroid
