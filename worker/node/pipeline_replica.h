#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/collective/group.h"
#include "worker/node/divided_replica.h"
#include "worker/node/group_reducer.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/pipeline.h"

namespace centroid::worker {

struct PipelineOptions {
  parallel::Mesh mesh;
  parallel::Schedule schedule = parallel::Schedule::kOneForwardOneBack;
  std::uint32_t micro_batches = 1;   ///< of a step; at least as many as stages
  parallel::ShardedOptions sharded;  ///< of a stage, among its data parallel ranks
  /// Measured (layer_costs.h), the same on every rank. They decide what a rank computes, so numbers
  /// may differ in the last bits where other ranks add them up. Empty: by the elements of matrices,
  /// which a sample is multiplied with.
  std::vector<double> layer_costs{};
};

/// Elements of each layer's matrices that a sample is multiplied with.
///
/// fails  invalid_argument: the model has no passes
Result<std::vector<double>> matrix_elements(const Model& model);

/// The layers of each stage, by their costs.
///
/// fails  invalid_argument: more stages than layers, fewer micro-batches than stages, a model
///        without passes, whose layers share tensors, or whose tensors cannot be divided (tp),
///        costs of another number of layers
Result<std::vector<parallel::Range>> stage_layers(const Model& model,
                                                  const PipelineOptions& options);

/// Bytes of a rank.
struct PipelineMemory {
  parallel::ShardedMemory planes;
  std::uint64_t activations = 0;
};
/// The most that a rank has at once, of `samples` samples of a data rank in a step.
///
/// fails  as stage_layers
Result<PipelineMemory> pipeline_memory(const Model& model, const PipelineOptions& options,
                                       std::uint32_t rank, std::uint64_t samples);

/// The model's tensors on each tensor parallel rank.
///
/// fails  as part_shapes
Result<std::vector<Manifest>> part_manifests(const Model& model, const PipelineOptions& options);

/// The parameters of each tensor parallel rank, of all stages. A whole tensor counts once.
///
/// fails  invalid_argument: the model has no passes, or cannot be divided so
Result<std::vector<std::vector<parallel::ParameterShape>>> part_shapes(
    const Model& model, const PipelineOptions& options);

/// The stage of a rank, and the groups in which it trains: the ranks that differ in the stage, in
/// the samples, in the part of each tensor.
struct RankStage {
  collective::Group line, data, tensor;
  parallel::Range layers, tensors;  ///< of the model
  parallel::ShardedOptions sharded;
};
/// fails  invalid_argument: another number of ranks than the mesh has; as stage_layers
Result<RankStage> find_stage(const collective::Group& group, const Model& model,
                             const PipelineOptions& options);

/// Training of a built-in model on the CPU whose layers are divided among the stages of a pipeline,
/// and whose tensors among the tensor parallel ranks of a stage. Data parallel ranks may divide
/// their parameters, gradients and state.
///
/// memory  this rank's part of the tensors of its stage's layers; of activations those of its
///         micro-batches in flight. With `full` the part is gathered for a step
/// order   every rank of the group calls the same
/// fails   as run_pipeline and ShardedParameters: a lost rank ends the training on all
class PipelineReplica final : public DividedReplica, private parallel::Stage {
 public:
  /// Initial values are those of one process with this seed.
  ///
  /// fails  before memory is taken, as find_stage; as ShardedParameters::make
  static Result<std::unique_ptr<PipelineReplica>> make(const collective::Group& group,
                                                       const Model& model, std::uint64_t seed,
                                                       const PipelineOptions& options);
  /// With parameters of the stage that are restored, or were those of an earlier group.
  PipelineReplica(const collective::Group& group, const Model& model,
                  const PipelineOptions& options, RankStage stage,
                  std::shared_ptr<parallel::ShardedParameters> parameters);

  /// `batches`: one, which is divided into micro-batches.
  Result<ShardedStep> step(std::span<const Batch> batches, std::uint64_t all_samples) override;
  Result<StepResult> evaluate(const Batch& batch) override;
  const Model& model() const override { return *whole_; }
  std::uint32_t data_rank() const override { return data_.rank(); }
  std::uint32_t data_world() const override { return data_.world(); }
  RankCosts costs() const override;
  /// Rank 0 visits the tensors of all stages; the others send theirs.
  Status visit(const Visit& visit) override;

  parallel::Range layers() const { return layers_; }  ///< of this stage
  const std::shared_ptr<parallel::ShardedParameters>& parameters() const { return parameters_; }
  parallel::ShardedMemory most_memory() const { return most_; }
  /// Of all steps so far, in sum.
  const parallel::PipelineReport& report() const { return report_; }

 private:
  /// A copy of the stage with the activations of one micro-batch.
  struct Seat {
    std::unique_ptr<Model> model;
    bool is_taken = false;
    std::uint32_t micro_batch = 0;
  };
  void divide(const Batch& batch, std::uint32_t parts);
  Status gather(bool is_exact = false);
  Status release();
  Seat& take_seat(std::uint32_t micro_batch);
  Status run_pass(Seat& seat, std::uint32_t layer, bool is_backward);
  Status accumulate(std::uint32_t layer, std::uint64_t samples);
  Result<parallel::PipelineReport> run(std::span<const parallel::Actions> schedule);
  Result<ShardedStep> run_step();
  Error fail(const Error& cause);
  Result<std::span<const float>> join_parts(std::size_t tensor, std::span<const Manifest> parts,
                                            std::vector<float>& whole);
  Status visit_stages(const Visit& visit);
  Status send_stage(const Visit& visit);
  Status receive_stage(std::uint32_t stage, const Visit& visit);

  std::size_t input_elements(std::uint32_t micro_batch) const override;
  std::size_t output_elements(std::uint32_t micro_batch) const override;
  Status forward(std::uint32_t micro_batch, std::span<const float> input,
                 std::span<float> output) override;
  Status backward(std::uint32_t micro_batch, std::span<const float> output_gradient,
                  std::span<float> input_gradient) override;

  const collective::Group group_, line_, data_, tensor_;  ///< all ranks; as in RankStage
  const PipelineOptions options_;
  GroupReducer reducer_;
  const std::unique_ptr<Model> whole_, model_;  ///< model_: this rank's part of its tensors
  const std::vector<std::uint32_t> layer_of_;   ///< by tensor of the model
  const parallel::Range layers_, tensors_;      ///< of this stage
  const std::uint32_t passes_;                  ///< of a step of the model
  const std::shared_ptr<parallel::ShardedParameters> parameters_;
  const std::vector<parallel::Actions> schedule_;
  std::vector<Seat> seats_;
  TensorPlaces places_;
  std::vector<float> scratch_;  ///< gradient of a layer and a micro-batch
  parallel::ShardedMemory most_;
  parallel::PipelineReport report_;
  std::uint64_t received_ = 0;      ///< bytes of activations and their gradients
  std::uint64_t most_samples_ = 0;  ///< of a micro-batch
  // Of the present step:
  std::vector<Batch> micro_batches_;
  std::uint64_t all_samples_ = 0;
  bool is_training_ = false;
  StepResult result_;
};

}  // namespace centroid::worker
