#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/tensor.h"
#include "worker/parallel/shard_layout.h"

namespace centroid::parallel {

/// Where elements of some tensors, laid end to end, are among those of all tensors of a model. Of a
/// tensor parallel rank, whose tensors are parts of the model's: some of their rows, or columns.
///
/// thread  immutable
class ElementMap {
 public:
  /// Of the model's tensors `own`. `parts`: the tensors of each tensor parallel rank, of which this
  /// is `part`; empty: there is one, and it has whole tensors.
  ElementMap(const Manifest& model, Range own, std::span<const Manifest> parts, std::uint32_t part);

  struct Run {
    std::uint64_t at = 0;  ///< after the begin of what is asked for
    Range elements;        ///< of the model
    bool is_own = true;    ///< false: a lower part has them, too
  };
  /// The runs of consecutive elements, in their order.
  std::vector<Run> runs(Range elements) const;

 private:
  /// Of a tensor: rows that are `stride` elements apart in the model.
  struct Block {
    std::uint64_t begin = 0, elements = 0;
    std::uint64_t first = 0;  ///< of the model
    std::uint64_t width = 0, stride = 0;
    bool is_own = true;
  };
  std::vector<Block> blocks_;
};

}  // namespace centroid::parallel
