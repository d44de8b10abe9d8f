#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid {

/// Limit of the format. source: safetensors, "MAX_HEADER_SIZE" of its documentation
constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
/// Our limit, above a manifest's so that "slot/name" fits.
constexpr std::size_t kMaxSafetensorsNameBytes = 1024;

/// The part of a safetensors file before its data.
struct SafetensorsHeader {
  Manifest manifest;                   ///< in order of the data
  std::vector<std::uint64_t> offsets;  ///< first byte of each tensor within the data section
  std::map<std::string, std::string> metadata;
};

/// The file's first bytes: u64 length, JSON, spaces up to a multiple of 8.
/// fails invalid_argument: a name that is empty, too long, not UTF-8, duplicate or reserved;
/// overflow; header too long.
Result<std::string> build_safetensors_header(const Manifest& manifest,
                                             const std::map<std::string, std::string>& metadata);

/// Check the u64 at the beginning of a file against the file's size.
/// fails  data_loss.
Status check_safetensors_header_length(std::uint64_t header_bytes, std::uint64_t file_bytes);

/// Read the JSON part. Memory is bounded by the text's length, the stack does not grow with
/// nesting.
/// fails  data_loss: malformed in any way; unimplemented: a dtype without support. Names tensor and
///        field.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

/// The same for a whole file in memory.
Result<SafetensorsHeader> parse_safetensors(Bytes file);

}  // namespace centroid
