#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/bytes.h"

namespace centroid::collective {

/// Memory that operations reuse: fresh pages cost more than a small all-reduce.
///
/// thread  any
class ScratchPool {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  /// At least `bytes`, uninitialised.
  Block take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = std::find_if(blocks_.begin(), blocks_.end(),
                                   [&](const Block& block) { return block.bytes >= bytes; });
    if (fits == blocks_.end()) return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    Block block = std::move(*fits);
    blocks_.erase(fits);
    cached_ -= block.bytes;
    return block;
  }

  void give_back(Block block) {
    const std::lock_guard lock(mutex_);
    if (cached_ + block.bytes > kMaxCached) return;
    cached_ += block.bytes;
    blocks_.push_back(std::move(block));
  }

 private:
  static constexpr std::size_t kMaxCached = 8 << 20;
  std::mutex mutex_;
  std::vector<Block> blocks_;
  std::size_t cached_ = 0;
};

/// A segment that arrived before its turn.
struct CachedBlock {
  ScratchPool::Block memory;
  std::size_t bytes = 0;

  MutableBytes payload() const { return {memory.memory.get(), bytes}; }
};

}  // namespace centroid::collective
