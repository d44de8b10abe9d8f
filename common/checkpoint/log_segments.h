#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/crc32c.h"
#include "common/base/result.h"
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
Result<std::vector<LogSegment>> log_segments_of(const std::filesystem::path& folder,
                                                std::string_view prefix);
/// Of an earlier configuration; what cannot be listed or removed stays.
void remove_needless(const Result<std::vector<LogSegment>>& segments);

/// Cut off what stands behind the first `sound_bytes` of a segment, and bring the rest to the disk,
/// which has `durable_bytes` for certain. None are sound: the segment is removed.
Status end_log(const LogSegment& segment, std::uint64_t sound_bytes, std::uint64_t durable_bytes);

/// Whether `is_wanted` accepts the bytes at some place from `offset` to the end of `segment`: it
/// receives `head_bytes` of them and their position, only where bytes begin as all records do. Also
/// true if the file is unreadable.
bool any_record(const file::Descriptor& file, const LogSegment& segment, std::uint64_t offset,
                std::size_t head_bytes,
                const std::function<bool(Bytes head, std::uint64_t at)>& is_wanted);

/// The head of a record: the fields in their order, then CRC-32C of their bytes.
template <std::size_t kBytes, class... Fields>
std::vector<std::byte> encode_log_head(Fields... fields) {
  // In place, not by ByteWriter: g++ 12 sees an overflow in the growing vector where there is none.
  std::vector<std::byte> out(kBytes);
  std::size_t at = 0;
  const auto put = [&](auto value) {
    std::memcpy(out.data() + at, &value, sizeof value);
    at += sizeof value;
  };
  (put(fields), ...);
  put(crc32c(Bytes(out).first(at)));
  CENTROID_CHECK(at == kBytes);
  return out;
}

/// The head of the record at `position` of a segment, or why that record is damaged.
/// fails  unimplemented: the record has a later format; other codes: the file is unreadable
template <class Head>
Result<std::pair<Head, std::string>> read_log_head(const file::Descriptor& file,
                                                   const LogSegment& segment,
                                                   std::uint64_t position, std::size_t head_bytes,
                                                   Result<Head> (*decode)(Bytes)) {
  const auto damaged = [](std::string why) { return std::pair(Head(), std::move(why)); };
  if (segment.bytes - position < head_bytes) return damaged("the file ends within a record's head");
  std::vector<std::byte> bytes(head_bytes);
  CENTROID_TRY(file::read_at(file, segment.path, position, bytes));
  const Result<Head> head = decode(bytes);
  if (!head.ok()) {
    if (head.error().code() == ErrorCode::kUnimplemented)
      return head.error().with_context(segment.path.string());
    return damaged(head.error().message());
  }
  if (head->payload_bytes > segment.bytes - position - head_bytes)
    return damaged("the file ends within a record");
  if ((position == 0) != (head->kind == decltype(head->kind)::kBase))
    return damaged("a segment has one base record, its first");
  return std::pair(*head, std::string());
}

/// The first record of a segment; nothing: it is unreadable or damaged.
template <class Head, class Base>
std::optional<Base> read_log_base(const LogSegment& segment, std::size_t head_bytes,
                                  Result<Head> (*decode_head)(Bytes),
                                  Result<Base> (*decode_base)(Bytes)) {
  const auto file = file::open_regular(segment.path);
  if (!file.ok()) return std::nullopt;
  const auto head = read_log_head(*file, segment, 0, head_bytes, decode_head);
  if (!head.ok() || !head->second.empty()) return std::nullopt;
  std::vector<std::byte> payload(static_cast<std::size_t>(head->first.payload_bytes));
  if (!file::read_at(*file, segment.path, head_bytes, payload).ok()) return std::nullopt;
  if (crc32c(payload) != head->first.payload_crc) return std::nullopt;
  auto base = decode_base(payload);
  return base.ok() ? std::optional(std::move(base).value()) : std::nullopt;
}

}  // namespace centroid
