#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"

/// A checkpoint of a model that several ranks have together: each writes a file of its elements.
///
/// names   a tensor that one file has completely has its own name and shape there. Of another one,
///         elements BEGIN to END - 1, flattened in row-major order, are the tensor
///         "NAME[BEGIN:END]" of one dimension. Some columns of several rows are the matrix
///         "NAME[ROW:END,COLUMN:END]"; the last dimension of NAME is a row. To join NAME: put
///         each piece into a tensor of its shape
/// files   as shards.h: part 2 of 4 is model-00002-of-00004.safetensors, and
///         model.safetensors.index.json has the file of each piece. The optimizer's are the same;
///         its tensors are "SLOT/NAME". manifest.json has name and shape of each tensor
/// header  `__metadata__` of each file has this rule, the part, the run, version and model
namespace centroid {

/// Consecutive elements of tensors laid end to end.
struct ElementRun {
  std::uint64_t begin = 0, count = 0;
  const float* values = nullptr;  ///< to write them
};

/// Which part of which checkpoint a file is.
struct PartOf {
  std::string run_id;
  Version version;
  std::uint64_t model = 0;  ///< manifest_hash of all parameters
  std::size_t part = 0, parts = 1;

  std::map<std::string, std::string> metadata() const;
  std::string file_name(const std::string& stem) const;
};

std::uint64_t elements_of(const Manifest& manifest);
/// The optimizer's tensors: for each slot all parameters, "exp_avg/layer.weight".
Manifest optimizer_manifest(const Manifest& manifest, const std::vector<std::string>& slots);

/// Some elements of a tensor of a manifest, by a name in a file.
struct Piece {
  struct Interval {
    std::uint64_t begin = 0, end = 0;
  };
  std::string tensor;
  Interval elements;                ///< with columns: rows
  std::optional<Interval> columns;  ///< none: all of them
};
/// Reads "NAME[BEGIN:END]" and "NAME[ROW:END,COLUMN:END]"; nothing if it is another name.
std::optional<Piece> piece_of(const std::string& name);
/// Elements of a row, which is the last dimension.
std::uint64_t row_elements(const TensorInfo& tensor);
/// fails  invalid_argument: a parameter has the name of another one's piece
Status check_piece_names(const Manifest& manifest);
/// The tensors of a part's file. `runs` ascend and do not overlap. The same columns of consecutive
/// rows are one, so their number does not depend on that of the rows.
Manifest pieces_of(const Manifest& tensors, std::span<const ElementRun> runs);

/// Write and fsync one rank's file of `stem`.
/// fails  already_exists; resource_exhausted on a full disk
Result<FileRecord> write_part(const std::filesystem::path& folder, const std::string& stem,
                              const PartOf& part, const Manifest& tensors,
                              std::span<const ElementRun> runs);

}  // namespace centroid
