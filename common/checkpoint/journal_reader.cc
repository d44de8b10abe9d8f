#include "common/checkpoint/journal_reader.h"

#include <algorithm>

#include "common/base/crc32c.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::journal {

namespace fs = std::filesystem;

constexpr std::string_view kJournalPrefix = "journal-";

std::string segment_name(Round base) { return log_segment_name(kJournalPrefix, base.value); }

Result<std::vector<LogSegment>> segments_of(const fs::path& folder) {
  return log_segments_of(folder, kJournalPrefix);
}

Reader::Reader(const fs::path& folder) {
  auto found = segments_of(folder);
  if (found.ok())
    segments_ = std::move(found).value();
  else
    listed_ = found.error();
}

Status Reader::open_segment() {
  const fs::path& path = segments_[index_].path;
  CENTROID_ASSIGN(file::Descriptor file, file::open_regular(path));
  CENTROID_ASSIGN(segments_[index_].bytes, file::size_of(file, path));
  open_ = std::make_shared<const Segment>(path, std::move(file));
  is_open_ = true;
  ended_.reset();
  position_ = sound_bytes_ = durable_bytes_ = 0;
  return {};
}

/// A later record of the segment states that more than `offset` bytes were on the disk then.
bool Reader::is_durable(std::uint64_t offset) const {
  const LogSegment& segment = segments_[index_];
  std::vector<std::byte> payload;
  const auto knows = [&](Bytes bytes, std::uint64_t at) {
    const auto head = decode_head(bytes);
    if (!head.ok() || (head->kind != Kind::kCommit && head->kind != Kind::kSkip)) return false;
    payload.resize(static_cast<std::size_t>(head->payload_bytes));
    if (!file::read_at(open_->file, segment.path, at + kHeadBytes, payload).ok()) return false;
    const auto commit = decode_commit(payload);
    return crc32c(payload) == head->payload_crc && commit.ok() && commit->durable_bytes > offset;
  };
  return any_record(open_->file, segment, offset, kHeadBytes, knows);
}

/// All rounds before the next segment have been read. Records after them were written by a server
/// that had been deposed when the other one began that segment.
bool Reader::is_superseded() const {
  return index_ + 1 < segments_.size() && ended_ && ended_->value >= segments_[index_ + 1].number;
}

/// The next segment was begun after a failed write, whose leftovers are at the end of this one.
bool Reader::precedes_gap() const {
  const auto base = read_log_base(segments_[index_ + 1], kHeadBytes, decode_head, decode_base);
  return base && base->follows_gap;
}

Result<std::optional<Reader::Record>> Reader::damaged(const std::string& why) {
  const std::string where =
      segments_[index_].path.string() + ", byte " + std::to_string(position_) + ": " + why;
  const bool has_next = index_ + 1 < segments_.size();
  // A segment begins when everything before it is on the disk, unless its write had failed.
  const bool is_torn = !is_durable(position_) && (!has_next || precedes_gap());
  if (is_torn && has_next) {
    ++index_;
    is_open_ = false;
    return next();
  }
  if (!is_torn)
    return Error(
        ErrorCode::kDataLoss,
        "journal " + where +
            "; these bytes were on the disk and are altered, and committed rounds follow them");
  torn_ = where;
  index_ = segments_.size() - 1;
  is_open_ = false;
  return std::optional<Record>();
}

Result<std::optional<Reader::Record>> Reader::next() {
  CENTROID_TRY(listed_);
  if (!torn_.empty()) return std::optional<Record>();
  if (is_open_ && (position_ == segments_[index_].bytes || is_superseded())) {
    if (index_ + 1 == segments_.size()) return std::optional<Record>();
    ++index_;
    is_open_ = false;
  }
  if (!is_open_) {
    if (index_ >= segments_.size()) return std::optional<Record>();
    CENTROID_TRY(open_segment());
  }
  const LogSegment& segment = segments_[index_];
  CENTROID_ASSIGN(const auto found,
                  read_log_head(open_->file, segment, position_, kHeadBytes, decode_head));
  const auto& [head, why] = found;
  if (!why.empty()) return damaged(why);
  payload_at_ = position_ + kHeadBytes;
  head_ = head;
  if (head.kind == Kind::kChunk) return std::optional<Record>(Chunk{head});

  std::vector<std::byte> payload(static_cast<std::size_t>(head.payload_bytes));
  CENTROID_TRY(file::read_at(open_->file, segment.path, payload_at_, payload));
  if (crc32c(payload) != head.payload_crc)
    return damaged("the record is altered: its CRC-32C differs");
  std::optional<Record> record;
  if (head.kind == Kind::kBase) {
    CENTROID_ASSIGN(Base base, decode_base(payload));
    record = std::move(base);
  } else if (head.kind == Kind::kRoute) {
    CENTROID_ASSIGN(Route route, decode_route(payload));
    record = std::move(route);
  } else {
    CENTROID_ASSIGN(Commit commit, decode_commit(payload));
    durable_bytes_ = commit.durable_bytes;
    record = End{head, std::move(commit)};
    ended_ = head.round;
  }
  position_ = sound_bytes_ = payload_at_ + head.payload_bytes;
  return record;
}

Result<bool> Reader::check() {
  constexpr std::uint64_t kPieceBytes = 128 * 1024;  // stays in the cache for the checksum
  pieces_.resize(static_cast<std::size_t>(kPieceBytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < head_.payload_bytes; done += kPieceBytes) {
    const std::uint64_t bytes = std::min(kPieceBytes, head_.payload_bytes - done);
    const MutableBytes piece = std::span(pieces_).first(static_cast<std::size_t>(bytes));
    CENTROID_TRY(file::read_at(open_->file, open_->path, payload_at_ + done, piece));
    crc = crc32c(piece, crc);
  }
  if (crc != head_.payload_crc) {
    if (index_ + 1 < segments_.size()) {  // its length is right: not from a failed write
      return Error(ErrorCode::kDataLoss, "journal " + segments_[index_].path.string() + ", byte " +
                                             std::to_string(position_) +
                                             ": the record is altered: its CRC-32C differs");
    }
    const auto end = damaged("the record is altered: its CRC-32C differs");
    if (!end.ok()) return end.error();
    return false;
  }
  skip();
  return true;
}

void Reader::skip() { position_ = payload_at_ + head_.payload_bytes; }

Status Reader::cut_tail() const {
  return segments_.empty() ? Status() : end_log(segments_.back(), sound_bytes_, durable_bytes_);
}

Result<Report> verify(const fs::path& folder,
                      const std::function<void(const Reader::Record&)>& each) {
  Reader reader(folder);
  Report report;
  report.segments = reader.segments().size();
  for (const LogSegment& segment : reader.segments()) report.bytes += segment.bytes;
  fault::point("verify.journal");
  for (;;) {
    CENTROID_ASSIGN(const auto record, reader.next());
    if (!record) break;
    if (std::get_if<Reader::Chunk>(&*record) != nullptr) {
      CENTROID_ASSIGN(const bool is_sound, reader.check());
      if (!is_sound) break;
    } else if (const auto* end = std::get_if<Reader::End>(&*record)) {
      ++(end->head.kind == Kind::kCommit ? report.commits : report.skips);
      if (!report.first) report.first = end->head.round;
      report.last = end->head.round;
    }
    if (each) each(*record);
  }
  report.torn = reader.torn();
  return report;
}

}  // namespace centroid::journal
