#pragma once

#include <filesystem>

#include "common/base/result.h"
#include "worker/node/divided_replica.h"

namespace centroid::worker {

/// Whether `save_model` can write there, as far as can be known before.
///
/// fails  already_exists; not_found: no such folder; as file.h
Status check_unwritten(const std::filesystem::path& path);

/// Write the whole model as one file: rank 0 writes it under another name and renames it, the
/// others send their parts.
///
/// fails  as check_unwritten and SafetensorsWriter; data_loss: a number is not finite
Status save_model(DividedReplica& replica, const std::filesystem::path& path, bool is_writer);

}  // namespace centroid::worker
