#include "common/checkpoint/log_segments.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace centroid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".log";
constexpr std::size_t kDigits = 12;
constexpr std::size_t kPiece = std::size_t{1} << 20;  // read at once
constexpr std::byte kFirst{'C'};                      // of every record's magic number

std::optional<std::uint64_t> number_of(const std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size() - kSuffix.size(), number);
  if (name != log_segment_name(prefix, number)) return std::nullopt;
  return number;
}

}  // namespace

std::string log_segment_name(std::string_view prefix, std::uint64_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return std::string(prefix).append(digits).append(kSuffix);
}

Result<std::vector<LogSegment>> log_segments_of(const fs::path& folder, std::string_view prefix) {
  std::vector<LogSegment> segments;
  const auto entries = file::list(folder);
  if (!entries.ok() && entries.error().code() != ErrorCode::kNotFound) return entries.error();
  if (!entries.ok()) return segments;
  for (const file::Entry& entry : *entries) {
    const auto number = number_of(entry.name, prefix);
    if (number && entry.about.kind == file::Kind::kFile)
      segments.push_back({folder / entry.name, *number, entry.about.bytes});
  }
  std::ranges::sort(segments, {}, &LogSegment::number);
  return segments;
}

void remove_needless(const Result<std::vector<LogSegment>>& segments) {
  if (!segments.ok()) return;
  for (const LogSegment& one : *segments) (void)file::remove(one.path);
}

/// Bytes that may not be on the disk are written again: after a sync that failed the system still
/// shows them, but no later sync writes them (Linux).
Status end_log(const LogSegment& segment, std::uint64_t sound_bytes, std::uint64_t durable_bytes) {
  if (sound_bytes == 0) {
    const Status removed = file::remove(segment.path);
    if (!removed.ok()) return Error(ErrorCode::kFailedPrecondition, removed.error().message());
    return file::sync_directory(segment.path.parent_path());
  }
  CENTROID_ASSIGN(const file::Descriptor file, file::open_to_change(segment.path));
  if (sound_bytes != segment.bytes) CENTROID_TRY(file::truncate(file, segment.path, sound_bytes));
  CENTROID_ASSIGN(const file::Descriptor source, file::open_regular(segment.path));
  std::vector<std::byte> piece;
  for (std::uint64_t at = std::min(durable_bytes, sound_bytes); at < sound_bytes;
       at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, sound_bytes - at)));
    CENTROID_TRY(file::read_at(source, segment.path, at, piece));
    const Status written = file::write_at(file, segment.path, at, piece);
    const bool is_full = !written.ok() && written.error().code() == ErrorCode::kResourceExhausted;
    if (is_full) break;  // no reason to lose what can be read
    CENTROID_TRY(written);
  }
  return file::sync(file, segment.path);
}

bool any_record(const file::Descriptor& file, const LogSegment& segment, std::uint64_t offset,
                std::size_t head_bytes,
                const std::function<bool(Bytes head, std::uint64_t at)>& is_wanted) {
  std::vector<std::byte> piece;
  for (std::uint64_t at = offset; at < segment.bytes; at += kPiece) {
    // A head may begin in one piece and end in the next.
    piece.resize(static_cast<std::size_t>(
        std::min<std::uint64_t>(kPiece + head_bytes - 1, segment.bytes - at)));
    if (!file::read_at(file, segment.path, at, piece).ok()) return true;
    for (std::size_t i = 0; i + head_bytes <= piece.size() && i < kPiece; ++i) {
      if (piece[i] != kFirst) continue;
      if (is_wanted(Bytes(piece).subspan(i, head_bytes), at + i)) return true;
    }
  }
  return false;
}

}  // namespace centroid
