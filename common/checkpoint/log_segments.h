#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/storage/file.h"

/// Common to the journals of rounds and of rows: numbered files in a folder, full of records.
namespace centroid {

struct LogSegment {
  std::filesystem::path path;
  std::uint64_t number = 0, bytes = 0;
};
/// `prefix`, at least 12 digits, ".log".
std::string log_segment_name(std::string_view prefix, std::uint64_t number);
/// Those of a folder, lowest number first; none if the folder is missing.
std::vector<LogSegment> log_segments_of(const std::filesystem::path& folder,
                                        std::string_view prefix);

/// Whether `is_wanted` accepts the bytes at some place from `offset` to the end of `segment`: it
/// receives `head_bytes` of them and their position, only where bytes begin as all records do. Also
/// true if the file is unreadable.
bool any_record(const file::Descriptor& file, const LogSegment& segment, std::uint64_t offset,
                std::size_t head_bytes,
                const std::function<bool(Bytes head, std::uint64_t at)>& is_wanted);

}  // namespace centroid
