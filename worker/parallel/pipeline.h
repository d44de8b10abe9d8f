#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/result.h"
#include "transport/collective/group.h"
#include "worker/parallel/pipeline_schedule.h"

namespace centroid::parallel {

/// The computing of one stage of a pipeline.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Numbers that a micro-batch brings from the stage before and takes to the stage after. What one
  /// stage sends, the next one expects. 0: no message.
  virtual std::size_t input_elements(std::uint32_t micro_batch) const = 0;
  virtual std::size_t output_elements(std::uint32_t micro_batch) const = 0;
  /// Spans last until the call returns.
  virtual Status forward(std::uint32_t micro_batch, std::span<const float> input,
                         std::span<float> output) = 0;
  virtual Status backward(std::uint32_t micro_batch, std::span<const float> output_gradient,
                          std::span<float> input_gradient) = 0;
};

/// What a stage did in a step.
struct PipelineReport {
  std::chrono::duration<double> computing{}, all{};
  Bubble bubble() const;  ///< of this stage
};

/// Run a schedule on this rank, stage `group.rank()` of `schedule`. Activations go to the next
/// rank, gradients to the one before, while the stage computes. Without backwards it is an
/// evaluation.
///
/// memory  the inputs of micro-batches that are here or on their way: at most as many as the stage
///         before may have in flight (most_activations); two gradients that come; outputs until
///         they are sent
/// order   every rank of the group calls it with the same schedule
/// fails   as an operation of collectives.h, and then on all ranks: the message names the rank that
///         was lost and the micro-batch; as the stage, whose error ends the group
Result<PipelineReport> run_pipeline(const collective::Group& group,
                                    std::span<const Actions> schedule, Stage& stage,
                                    std::chrono::milliseconds timeout);

}  // namespace centroid::parallel
