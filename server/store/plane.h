#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// One float32 value per parameter, all tensors end to end, with the readers of each chunk.
///
/// memory  zero at first, and the system allocates a page when it is first accessed
class Plane {
 public:
  /// Elements and chunks of `plan`; `tag` distinguishes this memory from others, in every role.
  Plane(const ChunkPlan& plan, std::uint32_t tag);

  std::uint32_t tag() const { return tag_; }
  std::span<float> values() const { return memory_.as<float>(); }
  std::span<float> values(const Chunk& chunk) const {
    return values().subspan(static_cast<std::size_t>(chunk.position),
                            static_cast<std::size_t>(chunk.elements));
  }
  std::size_t bytes() const { return memory_.size(); }
  /// Zero, and release the memory of complete pages to the system.
  void discard(const Chunk& chunk);

  void hold(ChunkId chunk) { ++holds_[chunk.value]; }
  void release(ChunkId chunk);
  bool is_held(ChunkId chunk) const { return holds_[chunk.value] != 0; }

 private:
  Buffer memory_;
  std::vector<std::uint32_t> holds_;  // readers in flight per chunk
  std::uint32_t tag_;
};

}  // namespace centroid::server
