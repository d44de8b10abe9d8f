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
  struct Extent {
    std::uint64_t begin = 0, count = 0;
    std::size_t file = 0;
    std::uint64_t at_byte = 0;
  };
  RangeReader() = default;
  Status add(const std::string& stem, const CheckpointManifest& content, const Manifest& tensors,
             std::uint64_t first);
  Status check_cover(const std::vector<std::string>& slots) const;

  std::filesystem::path folder_;
  Manifest tensors_;
  std::uint64_t plane_elements_ = 0, planes_ = 1;
  std::vector<std::string> files_;
  std::vector<Extent> extents_;  ///< ascending; all planes end to end
  file::Descriptor open_;        ///< the file that was read last
  std::size_t open_file_ = 0;
};

}  // namespace centroid
