#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"
#include "worker/node/pipeline_replica.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// The most bytes that a rank of exchange sharded has at once, with its data, a batch and
/// activations. The same for every rank.
///
/// fails  as sharded_memory
Result<parallel::ShardedMemory> job_memory(const Model& model,
                                           const parallel::ShardedOptions& options,
                                           std::uint32_t world, std::uint64_t batch,
                                           const DataSplit& data);

/// The same of a rank in a pipeline.
///
/// fails  as pipeline_memory
Result<parallel::ShardedMemory> job_memory(const Model& model, const PipelineOptions& options,
                                           std::uint32_t rank, std::uint64_t batch,
                                           const DataSplit& data);

}  // namespace centroid::worker
