#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/tensor.h"

namespace centroid {

/// The only remainder rule: `total` things on `parts`, the first total % parts get one more.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
Range part_of(std::uint64_t total, std::uint64_t parts, std::uint64_t index);

/// A contiguous slice of one tensor: unit of transfer, aggregation and placement.
struct Chunk {
  ChunkId id;
  TensorId tensor;
  std::uint64_t offset = 0;    ///< first element within the tensor
  std::uint64_t elements = 0;  ///< >= 1, except that a tensor without elements has no chunk
  std::uint64_t position = 0;  ///< first element within all tensors laid end to end
};

/// How tensors are cut. The same manifest and limit give the same plan on every node.
class ChunkPlan {
 public:
  ChunkPlan() = default;
  /// Cut each tensor into the fewest chunks of at most `max_chunk_bytes`, sizes by the remainder
  /// rule.
  /// fails  invalid_argument: bad manifest, max_chunk_bytes < 64, a tensor that is not f32, or more
  ///        than 2^32-1 chunks.
  static Result<ChunkPlan> make(Manifest manifest, std::uint64_t max_chunk_bytes);

  const Manifest& manifest() const { return manifest_; }
  std::span<const Chunk> chunks() const { return chunks_; }
  const Chunk& chunk(ChunkId id) const { return chunks_[id.value]; }
  std::span<const Chunk> chunks_of(TensorId tensor) const;
  /// Of a tensor that is not trained (tensor.h).
  bool is_buffer(const Chunk& chunk) const {
    return has_buffers_ && centroid::is_buffer(manifest_[chunk.tensor.value]);
  }
  bool has_buffers() const { return has_buffers_; }
  std::uint64_t total_elements() const { return total_elements_; }
  /// Elements of the largest chunk (0 if no tensor has elements).
  std::uint64_t max_chunk_elements() const { return max_chunk_elements_; }
  /// The limit of this plan.
  std::uint64_t max_chunk_bytes() const { return max_chunk_bytes_; }
  /// Hash of manifest and cut; both ends must agree before the first chunk moves. Limits that cut
  /// alike hash alike.
  std::uint64_t hash() const { return hash_; }
  /// First element of a tensor within all tensors laid end to end.
  std::uint64_t position_of(TensorId tensor) const { return positions_[tensor.value]; }

 private:
  Manifest manifest_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> positions_;
  std::vector<std::uint32_t> first_chunk_;  // per tensor, plus one past the end
  std::uint64_t total_elements_ = 0;
  std::uint64_t max_chunk_elements_ = 0;
  std::uint64_t max_chunk_bytes_ = 0;
  std::uint64_t hash_ = 0;
  bool has_buffers_ = false;
};

}  // namespace centroid
