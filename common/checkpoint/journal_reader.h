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
/// The segments of a folder, oldest first; none when there is no such folder.
std::vector<LogSegment> segments_of(const std::filesystem::path& folder);

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
  /// The next record, nothing at the end. After a Chunk: `read` or `skip` its numbers. A tail that
  /// no completed write left is the end too (`torn` says so).
  /// fails data_loss: damage before what was known to be on the disk, with path and offset
  Result<std::optional<Record>> next();
  /// The chunk's payload, head.payload_bytes of them. False: it is damaged, and is the torn tail.
  Result<bool> read(MutableBytes into);
  /// The same without the numbers, in memory that does not grow with them.
  Result<bool> check();
  void skip();
  /// Where the present chunk's payload is: file and offset. The file stays open with it.
  const std::shared_ptr<const Segment>& segment() const { return open_; }
  std::uint64_t payload_at() const { return payload_at_; }

  /// Why the last segment is not read to its end; empty when it is.
  const std::string& torn() const { return torn_; }
  const std::vector<LogSegment>& segments() const { return segments_; }
  /// Cut the torn tail, and records of rounds that never ended, off the last segment. What is left
  /// is then on the disk: who wrote it may have been killed before a sync, and a segment that
  /// follows says that all before it is there.
  Status cut_tail() const;

 private:
  Result<std::optional<Record>> damaged(const std::string& why);
  Result<bool> accept(std::uint32_t crc);
  Status open_segment();
  bool is_superseded() const;
  bool is_known_durable(std::uint64_t offset) const;
  bool precedes_gap() const;

  std::vector<LogSegment> segments_;
  std::size_t index_ = 0;
  std::shared_ptr<const Segment> open_;
  bool is_open_ = false;
  std::uint64_t position_ = 0, sound_bytes_ = 0;
  std::optional<Round> ended_;  // the last round of this segment that has been read
  Head head_;                   // of the chunk whose payload is next
  std::uint64_t payload_at_ = 0;
  std::vector<std::byte> pieces_;  // of a payload that is checked
  std::string torn_;
};

/// What `verify` finds: everything read, every checksum compared.
struct Report {
  std::size_t segments = 0;
  std::uint64_t bytes = 0, commits = 0, skips = 0;
  std::optional<Round> first, last;
  std::string torn;  ///< as Reader::torn
};
/// `each` gets every record that is sound, a chunk when its numbers are.
Result<Report> verify(const std::filesystem::path& folder,
                      const std::function<void(const Reader::Record&)>& each = {});

}  // namespace centroid::journal
