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

/// A written file, as manifest.json records it.
struct FileRecord {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// Writes one safetensors file with bounded memory: tensor by tensor, or all at the same time.
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
  /// The same, but each tensor grows from its own beginning: rows arrive one after another, and
  /// every column of them is a tensor.
  static Result<SafetensorsWriter> create_striped(
      const std::filesystem::path& path, const Manifest& manifest,
      const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();
  /// Append the next bytes of the data section; of a striped file, to one tensor.
  /// fails  failed_precondition: more than its size; resource_exhausted on a full disk, naming path
  ///        and free space.
  Status append(Bytes bytes) { return append(0, bytes); }
  Status append(std::size_t tensor, Bytes bytes);
  /// Check that all bytes were written, fsync, close.
  Result<FileRecord> finish();

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
