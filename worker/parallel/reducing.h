#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/parallel/shard_layout.h"
#include "worker/parallel/unit_buffers.h"

namespace centroid::parallel {

/// Gradients of units on their way to the mean of all ranks: reduced and scattered among the ranks
/// that share a copy of the model, then all-reduced among those that have the same shard.
///
/// thread  one at a time
class Reducing {
 public:
  /// Whole gradients whose operations go on while the next one is computed; each is memory of a
  /// unit. Two if a gradient has two operations: one of each.
  static std::size_t in_progress(std::uint64_t shards, std::uint64_t replicas) {
    return shards > 1 && replicas > 1 ? 2 : 1;
  }

  /// All references outlive it.
  Reducing(const ShardLayout& layout, const collective::Group& shards,
           const collective::Group& replicas, UnitBuffers& buffers,
           std::chrono::milliseconds timeout);

  /// Begin with a unit's gradient, of `buffers`; waits while more than `in_progress` are on their
  /// way. Means lie in the memory of the first ones.
  Status begin(std::size_t unit, Buffer gradient);
  /// Wait for all.
  Status finish();

  /// The unit was reduced since the last `clear`, or is on its way.
  bool has(std::size_t unit) const { return begun_[unit]; }
  /// This rank's part of a unit's mean; the sum if the unit was reduced several times.
  std::span<float> mean(std::size_t unit) { return means_[unit]; }
  /// Forget the means. Nothing is on its way.
  void clear();

 private:
  struct Entry {
    std::size_t unit = 0;
    Buffer gradient;
    std::optional<collective::Handle> scatter, reduce;
  };
  std::span<float> part(Entry& entry) const;
  void begin_second(Entry& entry);
  Status begin_seconds(std::size_t without);
  Status end_first();

  const ShardLayout& layout_;
  const collective::Group& shards_;
  const collective::Group& replicas_;
  UnitBuffers& buffers_;
  const std::chrono::milliseconds timeout_;
  std::deque<Entry> entries_;  ///< in the order of `begin`
  std::vector<bool> begun_;    ///< by unit
  std::vector<std::span<float>> means_;
  UnitParts parts_;  ///< where they are
};

}  // namespace centroid::parallel
