#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::worker {

/// A labelled data set in memory: features as rows of float32 (already scaled), labels
/// 0..classes-1. Immutable, thread-safe.
struct Dataset {
  std::string name;  ///< "digits: UCI handwritten digits, 1,797 images of 8x8"
  std::uint64_t samples = 0;
  std::uint64_t features = 0;
  std::uint32_t classes = 0;
  std::vector<float> x;          ///< [samples, features] dense; empty when sparse
  std::vector<std::uint32_t> y;  ///< [samples]
  /// Sparse form (text): CSR; row i holds columns cols[row_begin[i] .. row_begin[i+1]) with values
  /// vals.
  std::vector<std::uint64_t> row_begin;
  std::vector<std::uint32_t> cols;
  std::vector<float> vals;
  bool is_sparse() const { return !row_begin.empty(); }
  /// Sequences of tokens below `vocabulary`: sample i is tokens[token_begin[i] .. token_begin[i +
  /// 1]), at most `features` long. Without labels (y) it is one longer, and every token but the
  /// first is the label of the tokens before it.
  std::uint32_t vocabulary = 0;  ///< 0: the samples are rows of numbers
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint64_t> token_begin;
  std::uint64_t targets() const { return vocabulary > 0 && y.empty() ? features : 1; }
  static constexpr std::uint32_t kNoLabel = 0xFFFFFFFFU;  ///< after the end of a sequence
  /// Copy sequences `index`: tokens [index.size(), features] (0 after the end), labels
  /// [index.size(), targets()], lengths [index.size()].
  void gather_tokens(std::span<const std::uint64_t> index, std::span<std::uint32_t> out,
                     std::span<std::uint32_t> labels, std::span<std::uint32_t> lengths) const;
  /// Copy rows `index` into out [index.size(), features] (densified when sparse) and labels.
  void gather(std::span<const std::uint64_t> index, std::span<float> out,
              std::span<std::uint32_t> labels) const;
  /// Hash over shape and content: workers of one job must agree.
  std::uint64_t fingerprint() const;
};

/// Training set and held-out set; no sample is in both.
struct DataSplit {
  Dataset train;
  Dataset test;
};

struct DataOptions {
  /// digits[:FILE.csv.gz] | digits-tokens[:FILE.csv.gz] | idx:DIR | packages[:FILE] |
  /// text:FILE|DIR,...
  std::string spec = "digits";
  std::string cache_dir;        ///< folder with digits.csv.gz
  std::uint64_t seed = 1;       ///< of the split (digits, packages: 80/20; text: 90/10)
  std::uint64_t context = 0;    ///< tokens of the model's longest sequence (text)
  std::string vocabulary_file;  ///< more tokens than the bytes (text.h); empty: bytes only
};

/// Load a data set.
/// fails  invalid_argument (unknown spec: lists the known), not_found (names the file and how to
///        get it), data_loss (file damaged: names file, line or offset, what was expected),
///        failed_precondition (no samples).
Result<DataSplit> load_data(const DataOptions& options);

}  // namespace centroid::worker
