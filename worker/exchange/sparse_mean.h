#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/tensor/chunk_plan.h"

namespace centroid::worker {

/// A mean of which most numbers are 0. What is not listed stands in the plane.
struct SparseMean {
  struct Part {
    std::uint64_t position = 0, elements = 0;  ///< of all tensors laid end to end
    bool is_listed = false;
    bool is_buffer = false;            ///< not listed, and not trained
    std::size_t first = 0, count = 0;  ///< of index and value
  };
  std::vector<Part> parts;           ///< all elements, in any order
  std::vector<std::uint32_t> index;  ///< within the part, ascending
  std::vector<float> value;

  void clear() { parts.clear(), index.clear(), value.clear(); }
  /// Add a chunk of which these numbers are not 0.
  void list(const Chunk& chunk, std::span<const std::uint32_t> at, std::span<const float> values) {
    parts.push_back({.position = chunk.position,
                     .elements = chunk.elements,
                     .is_listed = true,
                     .first = index.size(),
                     .count = at.size()});
    index.insert(index.end(), at.begin(), at.end());
    value.insert(value.end(), values.begin(), values.end());
  }
  /// All numbers of a part that is listed.
  void write_out(const Part& part, std::span<float> to) const {
    std::ranges::fill(to, 0.0f);
    for (std::size_t j = part.first; j < part.first + part.count; ++j) to[index[j]] = value[j];
  }
  /// Add a chunk whose mean stands in the plane.
  void leave(const ChunkPlan& plan, const Chunk& chunk) {
    parts.push_back({.position = chunk.position,
                     .elements = chunk.elements,
                     .is_buffer = plan.is_buffer(chunk)});
  }
};

}  // namespace centroid::worker
