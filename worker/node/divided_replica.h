#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "common/base/result.h"
#include "worker/model/model.h"
#include "worker/parallel/pipeline.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// What a step was on this rank.
struct ShardedStep {
  StepResult result;  ///< of this rank's samples; in a pipeline only on the last stage, else 0
  parallel::StepReport report;
};

/// Kinds of operations with other ranks.
enum Operation : std::size_t {
  kGather,
  kReduce,
  kCopy,  ///< gradients of the copy of a shard
  kPass,  ///< activations and their gradients, to other stages and other parts of a layer
  kAgree,
  kOperations
};

/// What training has cost this rank since the replica was made.
struct RankCosts {
  std::array<parallel::Transfers, kOperations> transfers{};
  parallel::ShardedMemory memory;      ///< the most at once; spare counts as gradients
  std::uint64_t activation_bytes = 0;  ///< the most at once
  parallel::PipelineReport pipeline;   ///< 0: there are no stages

  /// Seconds in which it waited for other ranks.
  double waiting() const {
    double sum = 0;
    for (const parallel::Transfers& one : transfers) sum += one.seconds;
    return sum;
  }
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
  /// Ranks with the same data rank take the same samples; data_world(): none.
  virtual std::uint32_t data_rank() const = 0;
  virtual std::uint32_t data_world() const = 0;
  virtual RankCosts costs() const = 0;

  /// Visit the tensors in float32, in their order and on rank 0 at least.
  using Visit = std::function<Status(TensorId tensor, std::span<const float> values)>;
  virtual Status visit(const Visit& visit) = 0;
};

/// How long a rank without a part waits for what others do: steps, and the work of their disks.
/// They notice one that is silent, and their failure ends the operation of all.
inline constexpr std::chrono::hours kIdlePatience{24};

/// A rank that has no part of the model, and waits beside the others for their steps.
class IdleReplica final : public DividedReplica {
 public:
  /// `data_world`: of the ranks that train.
  IdleReplica(const Model& model, std::uint32_t data_world)
      : model_(model.clone()), data_world_(data_world) {}
  Result<ShardedStep> step(std::span<const Batch>, std::uint64_t) override { return ShardedStep(); }
  Result<StepResult> evaluate(const Batch&) override { return StepResult(); }
  const Model& model() const override { return *model_; }
  std::uint32_t data_rank() const override { return data_world_; }
  std::uint32_t data_world() const override { return data_world_; }
  RankCosts costs() const override { return {}; }
  Status visit(const Visit&) override { return {}; }

 private:
  const std::unique_ptr<Model> model_;
  const std::uint32_t data_world_;
};

}  // namespace centroid::worker
