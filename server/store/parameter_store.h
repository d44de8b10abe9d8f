#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/optim/optimizer.h"
#include "common/optim/step_trial.h"
#include "common/tensor/chunk_plan.h"
#include "server/store/plane.h"
#include "server/store/snapshot.h"

namespace centroid::server {

/// Factor that turns sums with this total weight into means.
inline float mean_factor(double total_weight) {
  CENTROID_CHECK(total_weight > 0);
  return static_cast<float>(1.0 / total_weight);
}

/// Committed parameters, optimizer slots and the spare plane in which the next version is computed.
/// All planes are float32 of plan.total_elements(), laid out end to end (Chunk::position).
///
/// memory  (2 + slots) planes, one more with a residual, nothing else that grows with the model (a
///         running snapshot: at most its copy budget)
/// thread  one (the service's), except Snapshot, which one other thread reads
/// rounds  contributions are summed into spare(); `apply` turns a chunk's sum into its result;
///         `commit_swap` publishes by one swap
class ParameterStore {
 public:
  /// `stores_residual`: results are sent through a codec with error feedback. Its remainder is
  /// written to spare and becomes the residual with the commit.
  ParameterStore(ChunkPlan plan, std::unique_ptr<Optimizer> optimizer,
                 bool stores_residual = false);
  ~ParameterStore();

  const ChunkPlan& plan() const { return *plan_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Replace the optimizer by one with the same rule and slots and another learning rate or
  /// schedule. Between rounds.
  void set_optimizer(std::unique_ptr<Optimizer> optimizer) { optimizer_ = std::move(optimizer); }
  Version version() const { return version_; }  ///< 0: not initialised
  std::uint64_t optimizer_step() const { return optimizer_step_; }
  /// The version of the present values: older than `version` after `commit_elsewhere`, 0 while they
  /// are replaced.
  Version held() const { return held_; }
  bool is_current() const { return held_ == version_; }
  /// Planes, and the copies of a running snapshot.
  std::uint64_t memory_bytes() const;

  /// Only these chunks (by chunk id) are here from now on; the memory of the others is released. At
  /// first all are. Between rounds, while no reply of a released chunk is being sent.
  void place(std::vector<bool> is_here);
  bool is_here(ChunkId chunk) const { return is_here_.empty() || is_here_[chunk.value]; }

  std::span<const float> params(const Chunk& chunk) const;
  /// To write into, until the next commit: the call preserves the chunk for a running snapshot, so
  /// repeat it after each commit_swap and begin_snapshot.
  std::span<float> spare(const Chunk& chunk);
  /// To read (a reply): preserves nothing.
  std::span<const float> spare(const Chunk& chunk) const;
  /// Planes of the state, in the order of a checkpoint: parameters, slots, residual.
  std::size_t planes() const { return 1 + slots_.size() + (residual_ ? 1 : 0); }
  std::span<const float> values(std::size_t number, const Chunk& chunk) const {
    return std::as_const(*plane(number)).values(chunk);
  }
  bool stores_residual() const { return residual_ != nullptr; }
  /// The remainder of committed rounds.
  std::span<const float> residual() const { return residual_->values(); }
  /// All of spare, to write into those chunks for which `spare` was called since the last commit.
  std::span<float> spare_plane() { return spare_->values(); }
  void clear_residual();  ///< of the chunks that are here
  /// Before initialisation only: memory for initial values.
  std::span<float> initial(const Chunk& chunk);

  /// Publish the initial values as version 1.
  void initialize();

  /// Sum -> mean: spare *= float32(1 / total_weight), in place; total_weight > 0. Then for
  /// `apply: server`: the optimizer's step into spare (slots change).
  void scale(const Chunk& chunk, double total_weight);
  /// Later steps, up to the next commit, multiply the mean by this (norm clipping); the mean in
  /// spare, which replies may be reading, stays.
  void set_gradient_factor(float factor) { gradient_factor_ = factor; }
  /// The same for the learning rate.
  void set_rate_factor(double factor) { optimizer_->set_rate_factor(factor); }
  void apply(const Chunk& chunk);
  /// For `apply: worker`: the same step as the workers', from the mean in spare into the parameters
  /// in place.
  void shadow_apply(const Chunk& chunk) { shadow_apply(chunk, spare_->values(chunk)); }
  /// The same from a mean in other memory.
  void shadow_apply(const Chunk& chunk, std::span<const float> mean);
  /// The same, with Optimizer::ignores_zeros, for a mean that is 0 except these numbers; not for
  /// buffers.
  void shadow_apply(const Chunk& chunk, std::span<const std::uint32_t> index,
                    std::span<const float> value);

  /// What `shadow_apply` with this mean would make of parameters and slots.
  Magnitude try_step(const Chunk& chunk, std::span<const float> mean);

  /// Repeat a step that was committed before: in place, with its rule, the mean times `factor`. For
  /// elements of one chunk, by any one thread, while no snapshot exists.
  void step_again(const Chunk& part, const rules::Step& rule, float factor, std::span<float> mean);

  /// Spare becomes the parameters (every chunk has been applied). version + 1, optimizer_step + 1.
  void commit_swap();
  /// After shadow_apply on every chunk. version + 1, optimizer_step + 1; swaps spare and residual.
  void commit_in_place();
  /// The same after a round of these chunks, all of which are here: the others do not change.
  void commit_swap(std::span<const Chunk> chunks);
  void commit_in_place(std::span<const Chunk> chunks);
  /// Rounds train this many parts of the model in turn: each part counts its own steps.
  void set_fragments(std::uint64_t count) { fragments_ = count; }
  /// A round without effect (all weights 0): version + 1, values unchanged. Not after an apply that
  /// changed slots or parameters.
  void commit_unchanged();
  /// The workers have applied a round among themselves: version + 1, optimizer_step + 1. The values
  /// here are outdated until they are loaded again: `begin_replacing`, `load` of every plane,
  /// `end_replacing`.
  void commit_elsewhere();
  void begin_replacing() { held_ = Version(); }
  void end_replacing() { held_ = version_; }

  /// Readers of a chunk's memory (replies being sent): while there is one, the plane's chunk must
  /// not be written. The hold follows the memory through commit_swap.
  struct Hold {
    std::uint32_t plane_tag = 0;
    ChunkId chunk;
  };
  Hold hold_spare(ChunkId chunk);
  void release(Hold hold);
  bool spare_is_read(ChunkId chunk) const { return spare_->is_held(chunk); }
  bool params_are_read(ChunkId chunk) const { return params_->is_held(chunk); }

  /// Begin a consistent copy-on-write view of the present version for another thread; one at a
  /// time. Nullptr while one exists, before initialisation, and while slots or parameters are ahead
  /// of the version (from a round's first apply to its commit). `on_room` is called on the reader's
  /// thread when the snapshot has room again, and when the next one may begin.
  std::shared_ptr<Snapshot> begin_snapshot(std::size_t copy_budget_bytes,
                                           std::function<void()> on_room = {});
  bool may_begin_snapshot() const {
    return version_ != Version() && !is_ahead_ && is_current() && !has_snapshot();
  }
  /// The changes still to come may exceed the copy budget. Until it is false, call neither apply,
  /// shadow_apply nor commit: the snapshot's reader makes room (a change without room fails the
  /// snapshot, never the round). Once false it stays false until the next begin_snapshot.
  bool snapshot_is_full() const;

  /// Load values (checkpoint, safetensors file): planes as in PlaneWriter, the residual after the
  /// slots. Then `restore` sets the counters.
  ///
  /// fails  invalid_argument: no such plane or elements; failed_precondition: a reply still reads
  ///        there
  Status load(std::size_t plane, std::uint64_t offset, std::span<const float> from);
  void restore(Version version, std::uint64_t optimizer_step);
  /// Grows with each of these two; at least 1.
  std::uint64_t loads() const { return loads_; }

  /// 64-bit hash of the parameters' bits: centroid::fingerprint of the whole plane.
  std::uint64_t fingerprint() const;

 private:
  bool has_snapshot() const { return snapshot_ && !snapshot_->is_dropped(); }
  void preserve(const Plane& plane, const Chunk& chunk);
  std::span<const float> times_factor(std::span<const float> gradient);
  void copy_spare(const Chunk& chunk, Plane& to);
  void count_step();
  void step(const Chunk& chunk, std::span<const float> gradient, std::span<float> out);
  const std::shared_ptr<Plane>& plane(std::size_t number) const;

  const std::shared_ptr<const ChunkPlan> plan_;
  std::unique_ptr<Optimizer> optimizer_;
  Version version_, held_;
  std::uint64_t next_step() const { return optimizer_step_ / fragments_ + 1; }
  std::uint64_t optimizer_step_ = 0, fragments_ = 1, loads_ = 1;
  float gradient_factor_ = 1;
  std::vector<float> scratch_;  // a chunk of the mean times gradient_factor_
  StepTrial trial_;
  std::vector<bool> is_here_;  // by chunk; empty: all
  std::size_t chunks_here_ = 0;
  bool is_ahead_ = false;  // slots or parameters contain part of the next version
  // Shared with a running snapshot only, which may outlive the store.
  std::shared_ptr<Plane> params_, spare_;
  std::vector<std::shared_ptr<Plane>> slots_;
  std::shared_ptr<Plane> residual_;     // nullptr: there is none
  std::shared_ptr<Snapshot> snapshot_;  ///< the last one, also after its reader has finished
};

}  // namespace centroid::server
