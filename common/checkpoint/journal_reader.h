#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/journal_format.h"
#include "common/checkpoint/log_segments.h"
#include "common/storage/file.h"

namespace centroid::journal {

/// "journal-000000000042.log" for rounds over before: their number is the segment's.
std::string segment_name(Round base);
/// The segments of a folder, oldest first; none if the folder is missing.
Result<std::vector<LogSegment>> segments_of(const std::filesystem::path& folder);

/// An open file of a journal.
struct Segment {
  std::filesystem::path path;
  file::Descriptor file;
};

/// Reads a journal record by record, through all segments of a folder. Blocking I/O; one thread.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& folder);

  struct Chunk {
    Head head;
  };
  struct End {
    Head head;  ///< kCommit or kSkip
    Commit commit;
  };
  using Record = std::variant<Base, Chunk, End, Route>;
  /// The next record, nothing at the end. After a Chunk: `check` or `skip` its numbers. An
  /// incompletely written tail is the end too (reported by `torn`).
  /// fails data_loss: damage before the durable end, with path and offset
  Result<std::optional<Record>> next();
  /// Read the chunk's numbers and compare their checksum, in memory of constant size. False: they
  /// are damaged, and part of the torn tail.
  Result<bool> check();
  void skip();
  /// Where the present chunk's payload is: file and offset. The file stays open with it.
  const std::shared_ptr<const Segment>& segment() const { return open_; }
  std::uint64_t payload_at() const { return payload_at_; }

  /// Why the last segment is not read to its end; empty if it is.
  const std::string& torn() const { return torn_; }
  /// Whether the folder could be read; look at it before `segments`.
  const Status& listed() const { return listed_; }
  const std::vector<LogSegment>& segments() const { return segments_; }
  /// Cut the torn tail, and records of rounds that never ended, off the last segment, and sync the
  /// rest: its writer may have been killed before a sync, and a later segment states that all
  /// before it is on the disk.
  Status cut_tail() const;

 private:
  Result<std::optional<Record>> damaged(const std::string& why);
  Status open_segment();
  bool is_superseded() const;
  bool is_durable(std::uint64_t offset) const;
  bool precedes_gap() const;

  Status listed_;  ///< whether the folder could be read
  std::vector<LogSegment> segments_;
  std::size_t index_ = 0;
  std::shared_ptr<const Segment> open_;
  bool is_open_ = false;
  std::uint64_t position_ = 0, sound_bytes_ = 0;
  std::uint64_t durable_bytes_ = 0;  // of this segment, by the last round that has been read
  std::optional<Round> ended_;       // the last round of this segment that has been read
  Head head_;                        // of the chunk whose payload is next
  std::uint64_t payload_at_ = 0;
  std::vector<std::byte> pieces_;  // of a payload that is checked
  std::string torn_;
};

/// Result of `verify`: everything read, every checksum compared.
struct Report {
  std::size_t segments = 0;
  std::uint64_t bytes = 0, commits = 0, skips = 0;
  std::optional<Round> first, last;
  std::string torn;  ///< as Reader::torn
};
/// `each` receives every sound record, a chunk after its numbers were checked.
Result<Report> verify(const std::filesystem::path& folder,
                      const std::function<void(const Reader::Record&)>& each = {});

}  // namespace centroid::journal
