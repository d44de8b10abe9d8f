#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/checkpoint/log_segments.h"
#include "common/storage/file.h"

/// Bytes of the journal of tables of sparse rows; docs/internals/journal-formats.md has the table,
/// and how to read it. A segment is a file of records: a base, then batches of entries. A batch is
/// what one write brought to the disk: all of it counts, or none.
namespace centroid::rows_journal {

constexpr std::size_t kHeadBytes = 40;
constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{256} << 20;

enum class Kind : std::uint8_t {
  kBase = 1,   ///< first of a segment
  kBatch = 2,  ///< entries, one behind the other
};

struct Head {
  Kind kind = Kind::kBase;
  std::uint64_t payload_bytes = 0;
  /// Base: of the segment. Batch: of the batch, from 1, counted over all segments.
  std::uint64_t number = 0;
  /// Of the segment at the time of this record: durable bytes. Damage before them is an error;
  /// after them it may be a write that a power cut interrupted.
  std::uint64_t durable_bytes = 0;
  std::uint32_t payload_crc = 0;
};

struct Base {
  std::string run_id;
  std::uint64_t batches = 0;        ///< of the segments before
  bool follows_gap = false;         ///< entries before it are in no segment: the journal had failed
  std::vector<std::string> tables;  ///< as in the setting; entries refer to them by index
};

/// An operation of a table or a client.
struct Entry {
  enum class Kind : std::uint8_t {
    kPush = 1,    ///< data: keys (u64), then gradients (f32)
    kPull = 2,    ///< data: keys; it counts as a use of their rows
    kForget = 3,  ///< no client of this name returns
    // of tables on several servers: rows that come from another server, and go to one
    kRows =
        4,  ///< data: `rows` of RowsBlock (docs/reference/wire.md), for the Take that follows; client 1:
            ///< of keys that wait
    kTake = 5,  ///< data: buckets (u16) that are this server's by route `sequence`; client 1: with
                ///< the Rows before it
    kDrop = 6,  ///< data: keys, whose rows have gone
    kGive = 7,  ///< data: buckets (u16) that are no longer this server's; client 1: rows of them
                ///< that are here go
  } kind = Kind::kPush;
  std::uint16_t table = 0;
  std::uint32_t rows = 0;
  std::uint64_t now = 0;                   ///< of the tables' clock, seconds
  std::uint64_t client = 0, sequence = 0;  ///< of a push; client: of a forget
  std::uint64_t step = 0;                  ///< that a push belongs to; 0: unknown
  Bytes data;
};

std::vector<std::byte> encode(const Head& head);
/// fails data_loss: not one of our heads, or altered; unimplemented: of a later format.
Result<Head> decode_head(Bytes bytes);
std::vector<std::byte> encode(const Base& base);
Result<Base> decode_base(Bytes payload);

/// Bytes of an entry in a batch.
std::size_t size_of(const Entry& entry);
void append(const Entry& entry, std::vector<std::byte>& batch);
/// fails data_loss: not entries of ours.
Result<std::vector<Entry>> decode_batch(Bytes payload);

/// "rows-000000000042.log".
std::string segment_name(std::uint64_t number);

/// The segments of a folder, oldest first; none if the folder is missing.
Result<std::vector<LogSegment>> segments_of(const std::filesystem::path& folder);

/// Reads record by record through the segments of a folder from number `from` on. Blocking I/O; one
/// thread.
class Reader {
 public:
  Reader(const std::filesystem::path& folder, std::uint64_t from);

  /// Kind of the record that `next` read; its content is below, until the next call.
  enum class Found : std::uint8_t { kEnd, kBase, kBatch };
  /// An incompletely written tail is the end too (reported by `torn`).
  /// fails data_loss: damage before the durable end, with path and offset, or batches are missing
  /// between two segments
  Result<Found> next();
  const Base& base() const { return base_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// Of the present segment.
  std::uint64_t segment() const { return segments_[index_].number; }
  /// Batches so far, including earlier segments.
  std::uint64_t batches() const { return batches_; }

  /// Whether the folder could be read; look at it before `segments`.
  const Status& listed() const { return listed_; }
  const std::vector<LogSegment>& segments() const { return segments_; }
  /// Why the last segment is read no further; empty if nothing was left over.
  const std::string& torn() const { return torn_; }
  /// Cut the torn tail off the last segment, and sync the rest: its writer may have been killed
  /// before a sync.
  Status cut_tail() const;

 private:
  Status open_segment();
  Result<Found> damaged(const std::string& why);
  bool is_durable(std::uint64_t offset) const;
  std::optional<std::uint64_t> batches_before_next() const;

  Status listed_;  ///< whether the folder could be read
  std::vector<LogSegment> segments_;
  std::size_t index_ = 0;
  bool is_open_ = false;
  file::Descriptor file_;
  std::uint64_t position_ = 0;
  std::uint64_t durable_bytes_ = 0;  ///< of this segment, by the last record that has been read
  std::optional<std::uint64_t>
      limit_;  ///< batches up to the end of this segment, if there is a next one
  std::uint64_t batches_ = 0;
  Base base_;
  std::vector<Entry> entries_;
  std::vector<std::byte> payload_;
  std::string torn_;
};

/// Result of `verify`: everything read, every checksum compared.
struct Report {
  std::size_t segments = 0;
  std::uint64_t bytes = 0, batches = 0, pushes = 0;
  std::string torn;            ///< as Reader::torn
  std::set<std::string> runs;  ///< of its segments
};
Result<Report> verify(const std::filesystem::path& folder);

}  // namespace centroid::rows_journal
