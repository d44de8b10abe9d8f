#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid {

/// Writes one safetensors file tensor by tensor, sequentially, with bounded memory.
///
/// source  https://github.com/huggingface/safetensors (format: u64 header length, JSON header,
///         data)
/// thread  one; blocking I/O
/// owns    the file until `finish` succeeded: dropped before, it is removed
class SafetensorsWriter {
 public:
  /// Create `path` (must not exist) and write the header; data must follow in manifest order,
  /// complete.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          const Manifest& manifest,
                                          const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();
  /// Append the next bytes of the data section.
  /// fails  resource_exhausted on a full disk, naming path and free space.
  Status append(Bytes bytes);
  /// Check that all bytes were written, fsync, close. Returns the file's size and CRC-32C.
  struct Written {
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  Result<Written> finish();

 private:
  SafetensorsWriter();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads a safetensors file; the header is fully validated before anything is allocated for data:
/// header <= 100 MB, JSON object, offsets in bounds, no overlap, no hole, sizes match shapes and
/// dtypes.
class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(const std::filesystem::path& path);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();
  const Manifest& manifest() const;  ///< in order of their data
  const std::map<std::string, std::string>& metadata() const;
  /// Read a tensor's bytes (into.size() bytes from `offset_bytes` on).
  /// fails  not_found, data_loss (short file).
  Status read(const std::string& name, std::uint64_t offset_bytes, MutableBytes into) const;
  /// Read a complete tensor of f32, bf16 or f16 as float32.
  /// fails  as read; invalid_argument: another type or number of elements
  Status read_f32(const std::string& name, std::span<float> into) const;

 private:
  SafetensorsReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// CRC-32C of a file, read in pieces.
Result<std::uint32_t> file_crc32c(const std::filesystem::path& path);

}  // namespace centroid
