#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::server {

/// One float32 value per parameter, all tensors end to end, and who reads which chunk.
///
/// memory  zero at first, and taken from the system only where it is touched
class Plane {
 public:
  /// Elements and chunks of `plan`; `tag` tells this memory from others, whatever role it plays.
  Plane(const ChunkPlan& plan, std::uint32_t tag);

  std::uint32_t tag() const { return tag_; }
  std::span<float> values() const { return memory_.as<float>(); }
  std::span<float> values(const Chunk& chunk) const {
    return values().subspan(static_cast<std::size_t>(chunk.position),
                            static_cast<std::size_t>(chunk.elements));
  }
  std::size_t bytes() const { return memory_.size(); }
  /// Zero, and give the memory back to the system where it fills whole pages.
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
