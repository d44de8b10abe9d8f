#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/manifest_json.h"
#include "common/storage/file.h"
#include "common/tensor/tensor.h"

namespace centroid {

/// Reads any elements of a checkpoint, whole or in parts (pieces.h).
///
/// memory  a few words for each piece of a tensor
/// thread  one; blocking I/O
class RangeReader {
 public:
  /// Read the headers of all files. `content` is the manifest.json of the folder.
  ///
  /// fails  data_loss: a part is missing, is of another run, version or model, or the parts
  ///        together lack elements or have some twice; the message names file and tensor
  static Result<RangeReader> open(const std::filesystem::path& folder,
                                  const CheckpointManifest& content);

  const Manifest& manifest() const { return tensors_; }  ///< all parameters, in order
  /// Fill `into` with elements from `offset` on of all tensors laid end to end. Plane 0 is the
  /// parameters, plane 1.. the optimizer's slots.
  /// fails  invalid_argument: outside; data_loss: a file ends early. Checksums are not compared
  Status read(std::size_t plane, std::uint64_t offset, std::span<float> into);

 private:
  /// Columns of a row, and of those after it.
  struct Extent {
    std::uint64_t column = 0, width = 0;
    std::size_t file = 0;
    std::uint64_t at_byte = 0;
  };
  /// Columns of some rows of a tensor, one row after another in a file.
  struct Block {
    std::uint64_t tensor = 0;  ///< its first element
    std::uint64_t row = 0, rows = 0;
    Extent extent{};  ///< of the first row
  };
  /// Rows of a tensor that consist of the same columns.
  struct Band {
    std::uint64_t begin = 0;  ///< the first element
    std::uint64_t rows = 0, row_elements = 0;
    std::size_t first = 0, end = 0;  ///< extents
  };
  RangeReader() = default;
  Status add(const std::string& stem, const CheckpointManifest& content, const Manifest& tensors,
             std::uint64_t first);
  Result<std::vector<Block>> blocks_of(const std::string& stem, const CheckpointManifest& content,
                                       const Manifest& tensors, std::uint64_t first);
  Status add_bands(const TensorInfo& tensor, std::uint64_t first, std::span<const Block> blocks);

  std::filesystem::path folder_;
  Manifest tensors_;
  std::uint64_t plane_elements_ = 0, planes_ = 1;
  std::vector<std::string> files_;
  std::size_t blocks_ = 0;
  std::vector<Band> bands_;      ///< ascending; all planes end to end
  std::vector<Extent> extents_;  ///< of the bands, each by column
  file::Descriptor open_;        ///< the file that was read last
  std::size_t open_file_ = 0;
};

}  // namespace centroid
