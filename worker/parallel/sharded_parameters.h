#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/optim/optimizer.h"
#include "transport/collective/group.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/part_codec.h"
#include "worker/parallel/reducing.h"
#include "worker/parallel/shard_layout.h"
#include "worker/parallel/unit_buffers.h"

namespace centroid::parallel {

struct ShardedOptions {
  Sharding sharding;
  OptimizerConfig optimizer;
  std::uint64_t least_elements = ShardLayout::kLeastElements;  ///< of a unit
  /// Ranks that may be lost without loss of a step: 0 or 1. With 1 each rank has a copy of the
  /// shard of the rank before it, unless `none` or `hybrid` has one anyway, and steps it too.
  std::uint32_t replicas = 0;
  std::chrono::milliseconds timeout{0};  ///< of an operation; 0: the group's
  PartCodec codec{};                     ///< of gradients on their way
  /// Of parameters on their way. With another one than f32 all ranks compute with what it decodes
  /// to, and a rank's shard stays float32.
  PartCodec codec_down{};
  /// A rank of each part of the model, if these parameters are one of several: gradients are
  /// clipped by the norm of all parts (ParameterShape::is_counted), and all make a step or none.
  std::optional<collective::Group> parts{};
};

/// Bytes of this rank, without those of operations in progress in the collectives.
struct ShardedMemory {
  std::uint64_t parameters = 0;  ///< own shards, copies, and units that are gathered
  std::uint64_t gradients = 0;   ///< of whole units, in operations, of own shards and copies
  std::uint64_t spare = 0;       ///< of earlier units and gradients, for the next ones
  std::uint64_t state = 0;       ///< of the optimizer, with that of copies
  // Only of a plan:
  std::uint64_t snapshot = 0;  ///< what ShardedCheckpoints::begin copies
  std::uint64_t other = 0;     ///< data, batch and activations
  std::uint64_t total() const { return parameters + gradients + spare + state + other; }
};

/// Operations of a kind, since the parameters were made.
struct Transfers {
  std::uint64_t bytes = 0;  ///< of numbers that this rank has received in them
  double seconds = 0;       ///< in which it waited for them
};
struct ShardedCosts {
  Transfers gathers, reductions, copies;
  Transfers agreements;  ///< norms, and that all can make a step; their bytes do not count
};

/// What a step was.
struct StepReport {
  std::uint64_t step = 0;               ///< from 1 on
  std::optional<double> gradient_norm;  ///< of the whole model before clipping; with clip_norm
};

/// Parameters of a data parallel job, of which each rank has a shard, with its gradient and the
/// optimizer's state. In float32; only what moves may be encoded.
///
/// use       in forward and backward, for each unit: gather, `parameter`, release; in backward add
///           to `gradient` before, and reduce after it. At the end `step`
/// order     every rank calls make, prefetch, gather, reduce and step for the same units in the
///           same order. One without samples reduces as the others do: its gradient is 0
/// gradient  the mean over the ranks. A rank whose samples are not 1 / ranks of all multiplies its
///           gradient by samples * ranks / all
/// fails     invalid_argument, failed_precondition: wrong use; nothing is sent, nothing changes. An
///           operation that fails ends all: every rank's present and later calls fail with the
///           cause. `shard` has the parameters of the last step that began to change them here
/// bits      the same in every run of the same ranks, units and sharding
/// thread    one at a time; operations progress meanwhile
class ShardedParameters {
 public:
  /// Write a parameter's initial values.
  using Initial = std::function<Status(std::size_t parameter, std::span<float> out)>;

  /// Divide the parameters among the group's ranks; rank 0 gives the values, unit by unit.
  ///
  /// fails  as ShardLayout::make, make_optimizer, Sharding::parse and rank 0's `initial`
  static Result<std::unique_ptr<ShardedParameters>> make(const collective::Group& group,
                                                         std::vector<ParameterShape> parameters,
                                                         const ShardedOptions& options,
                                                         const Initial& initial);

  /// Write elements of the model: of its parameters (plane 0), or of the optimizer's slots.
  using Stored = std::function<Status(std::size_t plane, Range elements, std::span<float> out)>;
  /// The same with the values and state of a job after `steps` steps. Every rank reads what it has.
  /// `patience`: with the slowest of them; 0: options.timeout.
  ///
  /// fails  as `make`, and any rank's `stored`
  static Result<std::unique_ptr<ShardedParameters>> resume(const collective::Group& group,
                                                           std::vector<ParameterShape> parameters,
                                                           const ShardedOptions& options,
                                                           std::uint64_t steps,
                                                           const Stored& stored,
                                                           std::chrono::milliseconds patience = {});

  const ShardLayout& layout() const { return layout_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  std::uint64_t steps() const { return steps_; }
  /// The rank of the layout whose shard is here.
  std::uint32_t shard_rank() const { return shards_.rank(); }
  /// This rank's number among those with the same shard.
  std::uint32_t replica() const { return replicas_.rank(); }

  /// Begin to gather a unit. Nothing to do if this rank has all of it anyway.
  ///
  /// fails  failed_precondition: it is gathered, or prefetch was called twice
  Status prefetch(std::size_t unit);
  bool is_prefetched(std::size_t unit) const;
  /// Return when the unit's parameters are here.
  Status gather(std::size_t unit);
  bool is_gathered(std::size_t unit) const;
  /// The same with the values of the shards, whatever codec_down is: to save them.
  Status gather_exact(std::size_t unit);
  /// End the use of what gather brought, and of spans of `parameter`; its memory is spare.
  Status release(std::size_t unit);
  /// A parameter of a gathered unit, until release or step.
  Result<std::span<const float>> parameter(std::size_t index) const;

  /// The gradient of a parameter in this rank's samples, which the caller adds to; 0 at first and
  /// after each reduction. Valid until its unit is reduced.
  Result<std::span<float>> gradient(std::size_t index);
  /// Take memory for the gradient of a unit that has none, for a caller who writes each element
  /// instead of adding to it: it is not 0.
  Status take_gradient(std::size_t unit);
  /// The unit's gradient is complete: begin to reduce it, and add the mean to that of this step.
  /// Its memory is spare when that has ended; some reductions may be in progress.
  Status reduce(std::size_t unit);
  /// Without: reduce leaves gradients where they are, so micro-batches accumulate without
  /// communication.
  void set_sync(bool sync) { is_syncing_ = sync; }

  /// Reduce what is not reduced, clip by the norm of the whole gradient, and step the optimizer on
  /// the shard.
  ///
  /// fails  failed_precondition: a unit is gathered or prefetched, or there was no gradient
  Result<StepReport> step();

  /// This rank's elements of a unit; `unit` < layout().units().size().
  std::span<const float> shard(std::size_t unit) const;
  /// Memory for gradients of units beside those that are here.
  UnitBuffers& buffers() { return buffers_; }
  /// The optimizer's state of these elements; `slot` < optimizer().slots().
  std::span<const float> state(std::size_t unit, std::size_t slot) const {
    return units_[unit].state[slot];
  }
  ShardedMemory memory() const;
  const ShardedCosts& costs() const { return costs_; }

  /// The copy of another rank's shard and state; with replicas.
  bool has_copy() const { return !copies_.empty(); }
  std::uint32_t copied_rank() const {
    return (shards_.rank() + shards_.world() - 1) % shards_.world();
  }
  std::span<const float> copy(std::size_t unit) const { return copies_[unit].values; }
  std::span<const float> copy_state(std::size_t unit, std::size_t slot) const {
    return copies_[unit].state[slot];
  }
  /// All ranks had the gradient of the next step, and it failed before this rank knew: others may
  /// have made the step. With replicas or parts.
  bool is_prepared() const { return is_prepared_; }
  /// End the operations of these parameters on all ranks; returns the cause.
  Error fail(Error cause);
  /// Make the step that is prepared.
  void complete_step() { apply(); }

 private:
  /// Another rank's part of a unit.
  struct Copy {
    std::vector<float> values;
    std::span<float> mean;
    std::vector<std::vector<float>> state;
  };
  struct Unit {
    std::vector<float> master;              ///< this rank's shard; empty if `full` has it
    Buffer full;                            ///< all elements; empty: not gathered
    Buffer coded;                           ///< while `gathering`; empty without codec
    Buffer gradient;                        ///< of all elements, of this rank's samples; empty: 0
    std::vector<std::vector<float>> state;  ///< by slot, of the shard
    bool is_exact = false;                  ///< `full` has the values of the shards until release
    std::optional<collective::Handle> gathering;
  };

  ShardedParameters(ShardLayout layout, const ShardedOptions& options, collective::Group shards,
                    collective::Group replicas, std::unique_ptr<Optimizer> optimizer);
  static Result<std::unique_ptr<ShardedParameters>> divide(const collective::Group& group,
                                                           std::vector<ParameterShape> parameters,
                                                           const ShardedOptions& options);
  Status fill(const collective::Group& all, const Initial& initial);
  Status read(const Stored& stored);
  Status check_unit(std::size_t unit) const;
  Status check_step() const;
  double squares(std::size_t unit);
  Status place(std::size_t unit, Buffer whole);
  std::span<float> all_of(std::size_t unit) const;
  void begin_gather(std::size_t unit);
  Status end_gather(std::size_t unit);
  void begin_exact(std::size_t unit);
  Buffer& gradient_of(std::size_t unit);
  bool has_master() const { return !keeps_full_ || !down_.is_f32(); }
  std::span<float> own(std::size_t unit);
  void count_reduction(std::size_t unit);
  Status reduce_rest();
  std::vector<collective::Handle> begin_copies();
  Status end_copies(std::vector<collective::Handle> copying);
  Result<StepReport> measure();
  void clip(const StepReport& report);
  Status prepare();
  void apply();
  Status share_updates();

  const ShardLayout layout_;
  const std::chrono::milliseconds timeout_;
  const collective::Group shards_, replicas_;
  const std::optional<collective::Group> parts_;
  const std::unique_ptr<Optimizer> optimizer_;
  const bool keeps_full_;  ///< every rank has all parameters, always
  const PartCodec down_;   ///< of gathers; f32 if there are none
  const CodedParts gathered_;
  const bool is_safe_;  ///< all ranks make a step or none: with replicas or parts
  std::vector<Unit> units_;
  std::vector<Copy> copies_;  ///< by unit; empty: none
  UnitBuffers buffers_;
  UnitParts copied_;  ///< means of copies
  Reducing reducing_;
  ShardedCosts costs_;
  std::uint64_t steps_ = 0;
  bool is_syncing_ = true, has_gradient_ = false, is_prepared_ = false;
  std::optional<Error> failed_;
};

}  // namespace centroid::parallel
