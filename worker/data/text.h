#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"
#include "worker/data/data_source.h"

namespace centroid::worker {

/// Maps bytes to tokens. Tokens 0 to 255 are the bytes; the tokens of a file follow, one per line.
class Vocabulary {
 public:
  Vocabulary() = default;  ///< bytes only
  /// Add one token per line, of 2 to 64 bytes. The order is free but must be the same on every
  /// worker. As in C, \n, \t and a double backslash stand for one byte.
  ///
  /// fails  data_loss: names `file`, the line and what is wrong with it
  Status add(std::string_view lines, const std::string& file);

  std::uint32_t size() const { return static_cast<std::uint32_t>(256 + longer_.size()); }
  /// Append the tokens of `text`: at each position the longest token that matches.
  void encode(std::string_view text, std::vector<std::uint32_t>& out) const;

 private:
  std::unordered_map<std::string, std::uint32_t> longer_;
  std::size_t longest_ = 1;
};

/// Cut documents into samples of up to context + 1 tokens (all but the first are predicted; the
/// next sample begins with the last token of the one before) and hold out one in ten, drawn by
/// `seed`. No token is dropped: the last sample of a document has the remaining length. A document
/// of fewer than 2 tokens gives no sample.
///
/// fails  failed_precondition: fewer than 2 samples
Result<DataSplit> split_text(const std::vector<std::string>& documents,
                             const Vocabulary& vocabulary, std::uint64_t context,
                             std::uint64_t seed);

/// Read text files: `places` are files, or folders of files (links are not followed), separated by
/// commas. Files compressed with gzip are decompressed.
/// fails  as read_file, Vocabulary::add and split_text; invalid_argument: context 0
Result<DataSplit> load_text(const std::string& places, const std::string& vocabulary_file,
                            std::uint64_t context, std::uint64_t seed);

/// Turn every feature into a token: its value in 0..1, quantised to `levels` levels.
Dataset as_tokens(const Dataset& dense, std::uint32_t levels);

}  // namespace centroid::worker
