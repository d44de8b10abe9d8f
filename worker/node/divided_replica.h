#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/base/result.h"
#include "worker/model/model.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// What a step was on this rank.
struct ShardedStep {
  StepResult result;  ///< of this rank's samples; in a pipeline only on the last stage, else 0
  parallel::StepReport report;
};

/// Training of a built-in model that is divided among the ranks of a group.
///
/// order   every rank calls the same
/// thread  one at a time
class DividedReplica {
 public:
  virtual ~DividedReplica() = default;
  /// A step of `all_samples` samples, which all ranks have together; ours in one or more batches
  /// after each other. The gradient is that of the mean loss of all. With several batches it
  /// adds up on each rank and is reduced once.
  virtual Result<ShardedStep> step(std::span<const Batch> batches, std::uint64_t all_samples) = 0;
  /// Of this rank's samples.
  virtual Result<StepResult> evaluate(const Batch& batch) = 0;
  virtual const Model& model() const = 0;
  /// Ranks with the same data rank take the same samples.
  virtual std::uint32_t data_rank() const = 0;
  virtual std::uint32_t data_world() const = 0;

  /// Visit the tensors in float32, in their order and on rank 0 at least.
  using Visit = std::function<Status(TensorId tensor, std::span<const float> values)>;
  virtual Status visit(const Visit& visit) = 0;
};

}  // namespace centroid::worker
