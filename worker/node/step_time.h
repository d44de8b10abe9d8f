#pragma once

#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "worker/model/model.h"
#include "worker/node/layer_costs.h"
#include "worker/node/pipeline_replica.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// What decides the time of a step.
struct Speeds {
  std::vector<LayerCost> layers;  ///< of `samples` samples
  std::uint64_t samples = 1;
  double update = 0;     ///< seconds of the optimizer, per parameter
  double fill = 0;       ///< seconds to allocate a float of 0: parameters come, gradients begin
  double bandwidth = 0;  ///< bytes of tensors that a worker sends in a second, while it receives
                         ///< as many
};

/// Seconds of a step.
struct StepTime {
  double all = 0;
  double computing = 0;  ///< of them, of the worker that computes the most
};

/// The time of a step that ShardedReplica makes with `samples` samples of each rank. Messages have
/// no latency, and pass one after the other.
///
/// fails  as ShardedReplica::make
Result<StepTime> step_time(const Model& model, const parallel::ShardedOptions& options,
                           std::uint32_t world, std::uint64_t samples, const Speeds& speeds);

/// The same of PipelineReplica.
///
/// fails  as stage_layers
Result<StepTime> step_time(const Model& model, const PipelineOptions& options,
                           std::uint64_t samples, const Speeds& speeds);

}  // namespace centroid::worker
