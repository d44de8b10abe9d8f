#include "common/checkpoint/rows_journal.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "common/base/crc32c.h"
#include "common/checkpoint/fault_point.h"

namespace centroid::rows_journal {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kMagic = 0x314a5243;  // "CRJ1"
constexpr std::string_view kRowsPrefix = "rows-";
constexpr std::size_t kEntryHeadBytes = 40, kAlign = 8;
constexpr std::size_t kMaxText = 4096, kMaxTables = 65536;

Error refused(const std::string& why) { return {ErrorCode::kDataLoss, why}; }

std::size_t padded(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

std::vector<std::byte> encode(const Head& head) {
  return encode_log_head<kHeadBytes>(kMagic, head.kind, std::uint8_t{0}, std::uint16_t{0},
                                     head.payload_bytes, head.number, head.durable_bytes,
                                     head.payload_crc);
}

Result<Head> decode_head(Bytes bytes) {
  ByteReader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  Head head;
  head.kind = in.get<Kind>();
  const auto small = in.get<std::uint8_t>();
  const auto reserved = in.get<std::uint16_t>();
  head.payload_bytes = in.get<std::uint64_t>();
  head.number = in.get<std::uint64_t>();
  head.durable_bytes = in.get<std::uint64_t>();
  head.payload_crc = in.get<std::uint32_t>();
  const auto crc = in.get<std::uint32_t>();
  if (!in.done() || magic != kMagic) return refused("no head of a record is there");
  if (crc != crc32c(bytes.first(kHeadBytes - sizeof crc)))
    return refused("the record's head is altered: its CRC-32C differs");
  const bool is_known = (head.kind == Kind::kBase || head.kind == Kind::kBatch) && small == 0 &&
                        reserved == 0 && head.payload_bytes <= kMaxPayloadBytes;
  if (!is_known) return Error(ErrorCode::kUnimplemented, "a record of a later format is there");
  return head;
}

std::vector<std::byte> encode(const Base& base) {
  ByteWriter out;
  out.put(base.batches);
  out.put(static_cast<std::uint8_t>(base.follows_gap ? 1 : 0));
  out.put_string(base.run_id);
  out.put(static_cast<std::uint32_t>(base.tables.size()));
  for (const std::string& table : base.tables) out.put_string(table);
  return out.take();
}

Result<Base> decode_base(Bytes payload) {
  ByteReader in(payload);
  Base base;
  base.batches = in.get<std::uint64_t>();
  base.follows_gap = in.get<std::uint8_t>() != 0;
  base.run_id = in.get_string(kMaxText);
  const auto tables = in.get<std::uint32_t>();
  if (tables > kMaxTables) return refused("a base record with too many tables");
  for (std::uint32_t i = 0; i < tables && in.ok(); ++i)
    base.tables.push_back(in.get_string(kMaxText));
  if (!in.done()) return refused("the segment's base record has other fields than expected");
  return base;
}

std::size_t size_of(const Entry& entry) {
  return kEntryHeadBytes + (entry.step != 0 ? sizeof entry.step : 0) + padded(entry.data.size());
}

void append(const Entry& entry, std::vector<std::byte>& batch) {
  std::byte head[kEntryHeadBytes + sizeof entry.step] = {};
  std::size_t at = 0;
  const auto put = [&](auto value) {
    std::memcpy(head + at, &value, sizeof value);
    at += sizeof value;
  };
  put(entry.kind);
  put(std::uint8_t{entry.step != 0});
  put(entry.table);
  put(entry.rows);
  put(entry.now);
  put(entry.client);
  put(entry.sequence);
  put(std::uint64_t{entry.data.size()});
  if (entry.step != 0) put(entry.step);
  batch.insert(batch.end(), head, head + at);
  batch.insert(batch.end(), entry.data.begin(), entry.data.end());
  batch.resize(batch.size() + padded(entry.data.size()) - entry.data.size());
}

Result<std::vector<Entry>> decode_batch(Bytes payload) {
  std::vector<Entry> entries;
  ByteReader in(payload);
  while (in.ok() && in.left() > 0) {
    Entry entry;
    entry.kind = in.get<Entry::Kind>();
    const auto has_step = in.get<std::uint8_t>();
    entry.table = in.get<std::uint16_t>();
    entry.rows = in.get<std::uint32_t>();
    entry.now = in.get<std::uint64_t>();
    entry.client = in.get<std::uint64_t>();
    entry.sequence = in.get<std::uint64_t>();
    const auto bytes = in.get<std::uint64_t>();
    bool is_known = entry.kind >= Entry::Kind::kPush && entry.kind <= Entry::Kind::kGive;
    if (has_step != 0) {
      entry.step = in.get<std::uint64_t>();
      is_known = entry.kind == Entry::Kind::kPush && has_step == 1 && entry.step != 0;
    }
    if (!in.ok() || bytes > in.left() || !is_known)
      return refused("a batch has other fields than expected");
    entry.data = in.get_bytes(static_cast<std::size_t>(bytes));
    in.get_bytes(padded(entry.data.size()) - entry.data.size());
    entries.push_back(entry);
  }
  if (!in.done()) return refused("a batch ends within an entry");
  return entries;
}

std::string segment_name(std::uint64_t number) { return log_segment_name(kRowsPrefix, number); }

Result<std::vector<LogSegment>> segments_of(const fs::path& folder) {
  return log_segments_of(folder, kRowsPrefix);
}

Reader::Reader(const fs::path& folder, std::uint64_t from) {
  auto found = segments_of(folder);
  if (found.ok())
    segments_ = std::move(found).value();
  else
    listed_ = found.error();
  std::erase_if(segments_, [&](const LogSegment& segment) { return segment.number < from; });
}

Status Reader::open_segment() {
  CENTROID_ASSIGN(file_, file::open_regular(segments_[index_].path));
  CENTROID_ASSIGN(segments_[index_].bytes, file::size_of(file_, segments_[index_].path));
  is_open_ = true;
  position_ = durable_bytes_ = 0;
  limit_ = batches_before_next();
  return {};
}

/// A later record of the segment states that more than `offset` bytes were on the disk then, or
/// there is a later segment, which begins after all of this one is synced.
bool Reader::is_durable(std::uint64_t offset) const {
  if (index_ + 1 < segments_.size()) return true;
  const auto knows = [offset](Bytes bytes, std::uint64_t at) {
    const auto head = decode_head(bytes);
    return head.ok() && head->durable_bytes > offset && head->durable_bytes <= at;
  };
  return any_record(file_, segments_[index_], offset, kHeadBytes, knows);
}

/// How many batches precede the next segment, by its base.
std::optional<std::uint64_t> Reader::batches_before_next() const {
  if (index_ + 1 >= segments_.size()) return std::nullopt;
  const auto base = read_log_base(segments_[index_ + 1], kHeadBytes, decode_head, decode_base);
  return base ? std::optional(base->batches) : std::nullopt;
}

Result<Reader::Found> Reader::damaged(const std::string& why) {
  const std::string where =
      segments_[index_].path.string() + ", byte " + std::to_string(position_) + ": " + why;
  if (is_durable(position_))
    return Error(ErrorCode::kDataLoss,
                 "journal " + where +
                     "; these bytes were on the disk and are altered, and pushes follow them");
  torn_ = where;
  return Found::kEnd;
}

Result<Reader::Found> Reader::next() {
  CENTROID_TRY(listed_);
  if (!torn_.empty()) return Found::kEnd;
  // After the last batch that the next segment counts: leftovers of a failed write, or of a deposed
  // server.
  const bool is_over = position_ > 0 && limit_ && batches_ == *limit_;
  if (is_open_ && (is_over || position_ == segments_[index_].bytes)) {
    if (index_ + 1 == segments_.size()) return Found::kEnd;
    ++index_;
    is_open_ = false;
  }
  if (!is_open_) {
    if (index_ >= segments_.size()) return Found::kEnd;
    CENTROID_TRY(open_segment());
  }
  const LogSegment& segment = segments_[index_];
  CENTROID_ASSIGN(const auto found,
                  read_log_head(file_, segment, position_, kHeadBytes, decode_head));
  const auto& [head, why] = found;
  if (!why.empty()) return damaged(why);
  payload_.resize(static_cast<std::size_t>(head.payload_bytes));
  CENTROID_TRY(file::read_at(file_, segment.path, position_ + kHeadBytes, payload_));
  if (crc32c(payload_) != head.payload_crc)
    return damaged("the record is altered: its CRC-32C differs");
  const auto missing = [&](std::uint64_t number) {
    return Error(ErrorCode::kDataLoss, "journal " + segment.path.string() +
                                           ": continues with batch " + std::to_string(number) +
                                           ", but batch " + std::to_string(batches_ + 1) +
                                           " was expected: a segment before it is missing");
  };
  if (head.kind == Kind::kBase) {
    CENTROID_ASSIGN(base_, decode_base(payload_));
    const bool is_first = index_ == 0;
    if (!is_first && batches_ != base_.batches) return missing(base_.batches + 1);
    batches_ = base_.batches;
  } else {
    if (head.number != batches_ + 1) return missing(head.number);
    CENTROID_ASSIGN(entries_, decode_batch(payload_));
    ++batches_;
  }
  durable_bytes_ = head.durable_bytes;
  position_ += kHeadBytes + head.payload_bytes;
  return head.kind == Kind::kBase ? Found::kBase : Found::kBatch;
}

Status Reader::cut_tail() const {
  return segments_.empty() ? Status() : end_log(segments_.back(), position_, durable_bytes_);
}

Result<Report> verify(const fs::path& folder) {
  Reader reader(folder, 0);
  Report report;
  report.segments = reader.segments().size();
  for (const LogSegment& segment : reader.segments()) report.bytes += segment.bytes;
  fault::point("verify.rows");
  for (;;) {
    CENTROID_ASSIGN(const Reader::Found found, reader.next());
    if (found == Reader::Found::kEnd) break;
    if (found == Reader::Found::kBase) {
      report.runs.insert(reader.base().run_id);
      continue;
    }
    ++report.batches;
    for (const Entry& entry : reader.entries())
      if (entry.kind == Entry::Kind::kPush) ++report.pushes;
  }
  report.torn = reader.torn();
  return report;
}

}  // namespace centroid::rows_journal
