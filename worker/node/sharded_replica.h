#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/model/model.h"
#include "worker/node/divided_replica.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::worker {

/// A pass with the units of its layers.
struct ShardedPass {
  std::vector<std::size_t> reads;
  std::vector<std::size_t> fetches;   ///< the next pass reads them, and this one does not
  std::vector<std::size_t> releases;  ///< this pass reads them, and the next one does not
  std::vector<std::size_t> writes;
  std::vector<std::size_t> completes;  ///< no later pass writes them
};
/// `layers` by tensor (Layered::layers).
std::vector<ShardedPass> plan_passes(const std::vector<Pass>& passes,
                                     const std::vector<std::uint32_t>& layers,
                                     const parallel::ShardLayout& layout);

/// The parameters of a model.
///
/// fails  invalid_argument: the model has no passes
Result<std::vector<parallel::ParameterShape>> parameter_shapes(const Model& model);

/// Training of a built-in model on the CPU, with its parameters divided among the ranks of a group.
///
/// memory  a unit is gathered before the first pass that reads it and freed after the last one that
///         follows directly; the units of the next pass come meanwhile. A gradient is reduced as
///         soon as it is complete
/// order   every rank calls the same, with the same number of batches. Batches may be empty
/// fails   as ShardedParameters: a lost rank ends the training on all
/// thread  one at a time
class ShardedReplica final : public DividedReplica {
 public:
  /// Rank 0 draws the initial values from `seed`, tensor by tensor.
  ///
  /// fails  as parameter_shapes and ShardedParameters::make
  static Result<std::unique_ptr<ShardedReplica>> make(const collective::Group& group,
                                                      const Model& model, std::uint64_t seed,
                                                      const parallel::ShardedOptions& options);
  /// With parameters of the group that are restored, or were those of an earlier group.
  ShardedReplica(const collective::Group& group, const Model& model,
                 std::shared_ptr<parallel::ShardedParameters> parameters);

  Result<ShardedStep> step(std::span<const Batch> batches, std::uint64_t all_samples) override;
  Result<StepResult> evaluate(const Batch& batch) override;
  /// Gather each unit in turn and visit its tensors, on every rank.
  Status visit(const Visit& visit) override;

  const Model& model() const override { return *model_; }
  std::uint32_t data_rank() const override { return rank_; }
  std::uint32_t data_world() const override { return world_; }
  RankCosts costs() const override;
  const std::shared_ptr<parallel::ShardedParameters>& parameters() const { return parameters_; }
  /// The most bytes that this rank had at once, without those of activations (Model::work_bytes).
  /// Spare memory counts as gradients.
  parallel::ShardedMemory most_memory() const { return most_; }

 private:
  Status run(const Batch& batch, const std::vector<ShardedPass>& plan, bool is_first, float factor);
  Status gather(std::size_t unit);
  Status release(std::size_t unit);
  Status place_gradients(std::size_t unit, bool is_first);
  Status complete(std::size_t unit, bool has_samples, bool is_first, float factor);
  void measure();

  const std::unique_ptr<Model> model_;
  Layered& layered_;
  const std::uint32_t rank_, world_;
  const std::shared_ptr<parallel::ShardedParameters> parameters_;
  std::vector<ShardedPass> training_, evaluation_;
  TensorPlaces places_;
  std::vector<Buffer> later_;  ///< by unit: gradient of a batch after the first
  parallel::ShardedMemory most_;
  std::uint64_t most_samples_ = 0;  ///< of a batch
};

}  // namespace centroid::worker
