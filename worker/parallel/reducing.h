#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/parallel/part_codec.h"
#include "worker/parallel/shard_layout.h"
#include "worker/parallel/unit_buffers.h"

namespace centroid::parallel {

/// Gradients of units on their way to the mean of all ranks: reduced and scattered among the ranks
/// that share a copy of the model, then all-reduced among those that have the same shard.
///
/// codec   what is sent is encoded, and added in float32. An all-reduce then has two operations:
///         the parts to their owners, and the means, which are encoded again, to all
/// thread  one at a time
class Reducing {
 public:
  /// Whole gradients whose operations go on while the next one is computed, each in the memory of a
  /// unit: as many as a gradient has operations.
  static std::size_t in_progress(const PartCodec& codec, std::uint32_t shards,
                                 std::uint32_t replicas) {
    return operations(codec, shards, replicas).size();
  }
  /// Float32 that each of them needs besides.
  static std::uint64_t room(const PartCodec& codec, const ShardLayout& layout, std::size_t unit,
                            std::uint32_t replicas);

  /// All references outlive it.
  Reducing(const ShardLayout& layout, const collective::Group& shards,
           const collective::Group& replicas, PartCodec codec, UnitBuffers& buffers,
           std::chrono::milliseconds timeout);

  /// Begin with a unit's gradient, of `buffers`; waits while more than `in_progress` are on their
  /// way. Means lie in the memory of the first ones.
  Status begin(std::size_t unit, Buffer gradient);
  /// Wait for all.
  Status finish();

  const PartCodec& codec() const { return codec_; }
  /// The unit was reduced since the last `clear`, or is on its way.
  bool has(std::size_t unit) const { return begun_[unit]; }
  /// This rank's part of a unit's mean; the sum if the unit was reduced several times.
  std::span<float> mean(std::size_t unit) { return means_[unit]; }
  /// Forget the means. Nothing is on its way.
  void clear();

 private:
  enum class Operation : std::uint8_t { kScatter, kAllReduce, kToOwners, kToAll };
  struct Entry {
    std::size_t unit = 0;
    Buffer gradient, room;
    std::size_t begun = 0;      ///< operations
    collective::Handle handle;  ///< of the last one
  };
  static std::vector<Operation> operations(const PartCodec& codec, std::uint32_t shards,
                                           std::uint32_t replicas);
  std::span<float> whole(Entry& entry) const;
  std::span<float> part(Entry& entry) const;
  std::span<float> part_of_replica(Entry& entry) const;
  collective::Handle start(Entry& entry);
  Status take_result(Entry& entry);
  Result<bool> go_on(Entry& entry);
  Status go_on_with_all();
  void store_mean(Entry& entry);

  const ShardLayout& layout_;
  const collective::Group& shards_;
  const collective::Group& replicas_;
  const PartCodec codec_;
  const CodedParts shard_parts_, replica_parts_;
  UnitBuffers& buffers_;
  const std::chrono::milliseconds timeout_;
  const std::vector<Operation> operations_;  ///< of each gradient
  std::deque<Entry> entries_;                ///< in the order of `begin`
  std::vector<bool> begun_;                  ///< by unit
  std::vector<std::span<float>> means_;
  UnitParts parts_;  ///< where they are
};

}  // namespace centroid::parallel
