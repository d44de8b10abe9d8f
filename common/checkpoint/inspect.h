#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/place.h"

/// A checkpoint's own folder: what its manifest says, and whether its files are as it says.
namespace centroid {

inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kManifestFile = "manifest.json";

Result<std::string> manifest_text(const std::filesystem::path& directory);
Result<CheckpointManifest> read_manifest(const std::filesystem::path& directory);
/// The files of one kind that a manifest names, in order.
Result<std::vector<std::string>> files_of(const CheckpointManifest& manifest,
                                          const std::string& stem);
bool is_part(const std::string& file);
/// Reads the manifest, and of the other files names and sizes; `verify`: all of their bytes too,
/// when names and sizes are right.
CheckpointEntry inspect(const std::filesystem::path& path, const Place& place, bool verify);

}  // namespace centroid
