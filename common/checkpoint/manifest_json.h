#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/checkpoint/checkpoint.h"

namespace centroid {

/// The content of manifest.json.
struct CheckpointManifest {
  CheckpointInfo info;
  std::map<std::string, FileRecord> files;  ///< by file name
  /// Of files with pieces of tensors (pieces.h): all parameters, f32, in order. Else none.
  Manifest tensors = {};
  /// Some of the pieces are columns of rows (pieces.h): format_version 2, which older programs
  /// refuse. Else 1.
  bool has_columns = false;
};

/// As JSON text; the last field is a CRC-32C of the rest, which detects altered values.
/// fails invalid_argument: text that is not UTF-8, a time that is not finite.
Result<std::string> to_json(const CheckpointManifest& manifest);

/// fails data_loss: not such a text, or altered; unimplemented: written in a later format. The
/// message names the field.
Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text);

}  // namespace centroid
