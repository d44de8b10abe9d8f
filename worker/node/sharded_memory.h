#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "worker/model/model.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// The most bytes that a rank of ShardedReplica has at once, from shapes alone: its step is walked
/// through. Without activations (Model::work_bytes) and operations in progress in the collectives.
///
/// fails  as ShardedReplica::make
Result<parallel::ShardedMemory> sharded_memory(const Model& model,
                                               const parallel::ShardedOptions& options,
                                               std::uint32_t world);

/// Float32 that the gradients of a copy need at once, in the memory of units.
std::uint64_t copied_gradients(const parallel::ShardLayout& layout);

}  // namespace centroid::worker
