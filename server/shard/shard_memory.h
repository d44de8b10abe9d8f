#pragma once

#include <cstddef>
#include <cstdint>

#include "server/shard/shard_chunks.h"
#include "server/shard/shard_context.h"
#include "server/shard/shard_rows.h"

namespace centroid::server {

/// Minimum budget for copies of chunks: for a reader of the state, for the journal.
inline constexpr std::size_t kShardCopyBytes = 64u << 20;

/// The memory of this server's share of the model, computed before it is allocated. The tables on
/// this server get the rest.
///
/// thread  one
class ShardMemory {
 public:
  ShardMemory(const ShardContext& context, ShardRows& rows) : context_(context), rows_(rows) {}

  /// `optimizer_slots`: planes of the optimizer's state.
  /// fails  as check_memory
  Status check(const proto::ServerModel& model, const FragmentPlan& fragments,
               std::size_t optimizer_slots);
  /// Bytes that a snapshot may copy.
  std::size_t snapshot_budget() const { return snapshot_budget_; }

 private:
  const ShardContext& context_;
  ShardRows& rows_;
  std::uint64_t snapshot_budget_ = 0;
};

}  // namespace centroid::server
