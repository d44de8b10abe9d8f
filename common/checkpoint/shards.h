#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/safetensors.h"

/// A model in several safetensors files with an index, with the names and layout of Hugging Face
/// libraries: `model.safetensors`, or `model-00001-of-00003.safetensors` ... and
/// `model.safetensors.index.json`.
namespace centroid {

/// The files of `stem` among `names`, in order, without the index; nothing if some are missing.
std::optional<std::vector<std::string>> shards_among(const std::set<std::string>& names,
                                                     const std::string& stem);
/// Name of the index of `stem`.
std::string shard_index_name(const std::string& stem);
/// Name of the file with this index of `count`.
std::string shard_file_name(const std::string& stem, std::size_t index, std::size_t count);
/// Create and fsync the index of `stem`: the file of each tensor, by the tensors of each file.
Result<FileRecord> write_shard_index(const std::filesystem::path& folder, const std::string& stem,
                                     const std::vector<Manifest>& files);

/// Writes the tensors of a manifest one after another, and begins another file if the next tensor
/// would make one larger than `max_bytes` of data (a larger tensor has a file of its own; 0: one
/// file). Otherwise as SafetensorsWriter.
class ShardedWriter {
 public:
  static Result<ShardedWriter> create(const std::filesystem::path& folder, const std::string& stem,
                                      const Manifest& manifest, std::uint64_t max_bytes);
  /// The next bytes of the tensors; they may continue in the next file.
  Status append(Bytes bytes);
  /// Writes the index too if there is more than one file. Returns the record of each file, by name.
  Result<std::map<std::string, FileRecord>> finish();

 private:
  struct Shard {
    std::string name;
    Manifest tensors;
    std::uint64_t bytes = 0;
  };
  ShardedWriter() = default;
  Status begin_file();
  Status end_file();
  Status write_index();

  std::filesystem::path folder_;
  std::string stem_;
  std::vector<Shard> shards_;
  std::size_t next_ = 0;    // next shard
  std::uint64_t left_ = 0;  // remaining bytes of the open one
  std::optional<SafetensorsWriter> open_;
  std::map<std::string, FileRecord> written_;
};

/// Create a file, write the text, fsync.
Status write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace centroid
