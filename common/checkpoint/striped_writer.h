#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/storage/file.h"
#include "common/tensor/tensor.h"

namespace centroid {

/// Writes one safetensors file whose tensors grow at the same time, each from its beginning: rows
/// arrive one after another, and every column of them is a tensor.
///
/// thread  one; blocking I/O
class StripedWriter {
 public:
  /// Create `path` (must not exist) and write the header.
  static Result<StripedWriter> create(const std::filesystem::path& path, const Manifest& manifest,
                                      const std::map<std::string, std::string>& metadata);
  /// Append to the tensor with this index in the manifest.
  /// fails  failed_precondition: more than its size; resource_exhausted on a full disk.
  Status append(std::size_t tensor, Bytes bytes);
  /// Check that all bytes were written, fsync, close.
  struct Written {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  Result<Written> finish();

 private:
  struct Stripe {
    std::uint64_t begin = 0, bytes = 0, written = 0;
    std::uint32_t crc = 0;
  };
  StripedWriter() = default;

  std::filesystem::path path_;
  file::Descriptor file_;
  std::vector<Stripe> stripes_;  ///< the header, then the tensors
};

}  // namespace centroid
