#include "worker/node/sharded_memory.h"

#include <deque>
#include <memory>
#include <vector>

#include "common/optim/optimizer.h"
#include "worker/node/sharded_replica.h"
#include "worker/parallel/reducing.h"

namespace centroid::worker {

using parallel::Reducing;
using parallel::ShardedMemory;
using parallel::ShardLayout;

namespace {

/// The memory that parallel::UnitParts has. Elements.
class Rooms {
 public:
  /// Whether there was room.
  bool take(std::uint64_t elements) {
    for (std::uint64_t& room : rooms_) {
      if (room < elements) continue;
      room -= elements;
      return true;
    }
    return elements == 0;
  }
  void add(std::uint64_t unit, std::uint64_t used) { rooms_.push_back(unit - used); }

 private:
  std::vector<std::uint64_t> rooms_;
};

/// What parallel::UnitBuffers has in use in a step of ShardedReplica. Elements.
class StepMemory {
 public:
  StepMemory(const ShardLayout& layout, const parallel::ShardedOptions& options, bool gathers,
             std::uint32_t replicas)
      : layout_(layout),
        options_(options),
        gathers_(gathers),
        replicas_(replicas),
        in_progress_(Reducing::in_progress(options.codec, layout.ranks(), replicas)),
        is_gathered_(layout.units().size()),
        is_coded_(layout.units().size()),
        has_gradient_(layout.units().size()) {}

  void run(const ShardedPass& pass) {
    for (const std::size_t unit : pass.reads) {
      fetch(unit);
      gather(unit);
    }
    for (const std::size_t unit : pass.fetches) fetch(unit);
    for (const std::size_t unit : pass.writes) {
      if (!has_gradient_[unit]) take(elements(unit));
      has_gradient_[unit] = true;
    }
    for (const std::size_t unit : pass.releases) release(unit);
    for (const std::size_t unit : pass.completes) {
      reducing_.push_back(unit);
      take(room(unit));
      if (reducing_.size() > in_progress_) end_reduction();
    }
  }
  /// Ends the reductions, and takes the gradients of another rank's shards if there is a copy.
  void end(bool has_copy) {
    while (!reducing_.empty()) end_reduction();
    if (has_copy) take(copied_gradients(layout_));
  }

  // When most was in use:
  std::uint64_t gathered() const { return gathered_at_most_; }
  std::uint64_t gradients() const { return most_ - gathered_at_most_; }

 private:
  std::uint64_t elements(std::size_t unit) const {
    return layout_.ranks() * layout_.shard(unit, 0).count;  // as ShardedParameters
  }
  void take(std::uint64_t elements) {
    used_ += elements;
    if (used_ <= most_) return;
    most_ = used_;
    gathered_at_most_ = gathered_;
  }
  std::uint64_t room(std::size_t unit) const {
    return Reducing::room(options_.codec, layout_, unit, replicas_);
  }
  void take_parameters(std::uint64_t elements) {
    gathered_ += elements;
    take(elements);
  }
  std::uint64_t coded(std::size_t unit) const {
    return Reducing::room(options_.codec_down, layout_, unit, 1);
  }
  void fetch(std::size_t unit) {
    if (!gathers_ || is_gathered_[unit] || is_coded_[unit]) return;
    if (options_.codec_down.is_f32()) return gather(unit);
    is_coded_[unit] = true;
    take_parameters(coded(unit));
  }
  void gather(std::size_t unit) {
    if (!gathers_ || is_gathered_[unit]) return;
    is_gathered_[unit] = true;
    take_parameters(elements(unit));
    if (!is_coded_[unit]) return;
    is_coded_[unit] = false;
    gathered_ -= coded(unit);
    used_ -= coded(unit);
  }
  void release(std::size_t unit) {
    if (!gathers_) return;
    is_gathered_[unit] = false;
    gathered_ -= elements(unit);
    used_ -= elements(unit);
  }
  /// The mean is here: in the memory of its gradient, or in that of an earlier one.
  void end_reduction() {
    const std::size_t unit = reducing_.front();
    reducing_.pop_front();
    const std::uint64_t part = layout_.shard(unit, 0).count;
    used_ -= room(unit);
    if (means_.take(part))
      used_ -= elements(unit);
    else
      means_.add(elements(unit), part);
  }

  const ShardLayout& layout_;
  const parallel::ShardedOptions& options_;
  const bool gathers_;
  const std::uint32_t replicas_;
  const std::size_t in_progress_;
  std::vector<bool> is_gathered_, is_coded_, has_gradient_;
  std::deque<std::size_t> reducing_;
  Rooms means_;
  std::uint64_t used_ = 0, gathered_ = 0, most_ = 0, gathered_at_most_ = 0;
};

}  // namespace

std::uint64_t copied_gradients(const ShardLayout& layout) {
  std::uint64_t sum = 0;
  Rooms rooms;
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    const std::uint64_t part = layout.shard(unit, 0).count, whole = layout.ranks() * part;
    if (rooms.take(part)) continue;
    rooms.add(whole, part);
    sum += whole;
  }
  return sum;
}

Result<ShardedMemory> sharded_memory(const Model& model, const parallel::ShardedOptions& options,
                                     std::uint32_t world) {
  CENTROID_ASSIGN(auto shapes, parameter_shapes(model));
  CENTROID_ASSIGN(const auto optimizer, make_optimizer(options.optimizer));
  const auto ranks = static_cast<std::uint32_t>(options.sharding.shard_ranks(0, world).size());
  CENTROID_ASSIGN(const ShardLayout layout,
                  ShardLayout::make(std::move(shapes), ranks, options.least_elements));
  const bool gathers = options.sharding.shards_parameters() && ranks > 1;
  const auto replicas = static_cast<std::uint32_t>(options.sharding.replica_ranks(0, world).size());
  const bool has_copy = options.replicas > 0 && replicas == 1;
  const std::unique_ptr<Model> own = model.clone();
  const Layered& layered = *own->layered();
  StepMemory step(layout, options, gathers, replicas);
  for (const ShardedPass& pass : plan_passes(layered.passes(true), layered.layers(), layout))
    step.run(pass);
  step.end(has_copy);
  const std::uint64_t shard = layout.shard_elements(0), copies = has_copy ? shard : 0;
  const bool has_master = gathers || (ranks > 1 && !options.codec_down.is_f32());
  ShardedMemory need;
  need.parameters = sizeof(float) * ((gathers ? 0 : layout.elements()) + (has_master ? shard : 0) +
                                     step.gathered() + copies);
  need.gradients = sizeof(float) * step.gradients();
  need.state = sizeof(float) * optimizer->slots() * (shard + copies);
  need.snapshot = sizeof(float) * (1 + optimizer->slots()) * shard;
  return need;
}

}  // namespace centroid::worker
