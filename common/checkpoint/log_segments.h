#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/storage/file.h"

/// What the journals of rounds and of rows have in common: files in a folder, numbered in their
/// names, that are full of records.
namespace centroid {

struct LogSegment {
  std::filesystem::path path;
  std::uint64_t number = 0, bytes = 0;
};
/// `prefix`, at least 12 digits, ".log".
std::string log_segment_name(std::string_view prefix, std::uint64_t number);
/// Those of a folder, lowest number first; none when there is no such folder.
std::vector<LogSegment> log_segments_of(const std::filesystem::path& folder,
                                        std::string_view prefix);

/// Whether `is_wanted` likes the bytes at some place from `offset` to the end of `segment`: it gets
/// `head_bytes` of them and where they lie. Only bytes that begin as all records do are shown.
/// Also true where the file cannot be read.
bool any_record(const file::Descriptor& file, const LogSegment& segment, std::uint64_t offset,
                std::size_t head_bytes,
                const std::function<bool(Bytes head, std::uint64_t at)>& is_wanted);

}  // namespace centroid
