#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/checkpoint/journal_reader.h"

namespace centroid::journal {

/// The chunks of a journal by round and attempt, for reading single ones: what a shard server has
/// prepared, some of which its leader has committed. Blocking I/O; one thread.
///
/// twice   a round that was prepared again with the same attempt number replaces an earlier one
///         that was never committed; a committed round is never prepared again
class Parts {
 public:
  /// Read the heads of all records of this run with these terms, and cut off what a crash left at
  /// the end. Nothing may write there meanwhile.
  /// fails  data_loss: as Reader::next
  static Result<Parts> scan(const std::filesystem::path& folder, const std::string& run_id,
                            const std::string& terms);

  struct Numbers {
    Form form = Form::kNone;
    std::vector<std::byte> bytes;
  };
  /// fails not_found: this journal does not have that part of that round; data_loss: it is altered
  Result<Numbers> read(Round round, std::uint32_t attempt, ChunkId chunk) const;
  /// The run and the terms of other segments; empty: there are none.
  const std::string& others() const { return others_; }
  /// The last round of the run that was prepared here, if any.
  std::optional<Round> last() const { return last_; }

 private:
  struct Place {
    std::size_t file = 0;  ///< of files_
    std::uint64_t at = 0;
    Head head;
  };
  using Key = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;

  std::vector<std::filesystem::path> files_;
  std::map<Key, Place> places_;
  std::optional<Round> last_;
  std::string others_;
};

}  // namespace centroid::journal
