#include "worker/node/job_memory.h"

#include "worker/node/group_memory.h"
#include "worker/node/sharded_memory.h"

namespace centroid::worker {

Result<parallel::ShardedMemory> job_memory(const Model& model,
                                           const parallel::ShardedOptions& options,
                                           std::uint32_t world, std::uint64_t batch,
                                           const DataSplit& data) {
  CENTROID_ASSIGN(parallel::ShardedMemory need, sharded_memory(model, options, world));
  const GroupMemory none = memory_of(model, 1, batch, data, false);
  need.other = none.data + none.batch + none.per_device;
  return need;
}

Result<parallel::ShardedMemory> job_memory(const Model& model, const PipelineOptions& options,
                                           std::uint32_t rank, std::uint64_t batch,
                                           const DataSplit& data) {
  CENTROID_ASSIGN(const PipelineMemory need, pipeline_memory(model, options, rank, batch));
  const GroupMemory none = memory_of(model, 1, batch, data, false);
  parallel::ShardedMemory out = need.planes;
  out.other = none.data + none.batch + need.activations;
  return out;
}

}  // namespace centroid::worker
