#pragma once

#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "worker/model/model.h"
#include "worker/node/layer_costs.h"
#include "worker/node/pipeline_replica.h"
#include "worker/node/transfer_costs.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// What decides the time of a step.
struct Speeds {
  std::vector<LayerCost> layers;  ///< of `samples` samples
  std::uint64_t samples = 1;
  double update = 0;  ///< seconds of the optimizer, per parameter
  double copy = 0;    ///< seconds to copy a float: own shards to their units, and means
  double fill = 0;    ///< seconds to set a float to 0: gradients of stages
  /// Bytes of tensors that a worker sends in a second, while it receives as many.
  double bandwidth = 0;
  /// Processor time of that, taken from computing; 0: a worker has another core for it.
  TransferCosts transfers{};
};

/// Seconds of a step.
struct StepTime {
  double all = 0;
  double computing = 0;  ///< of them, of the processor of the worker that computes the most
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
