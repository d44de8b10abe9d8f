#include "worker/node/sharded_replica.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "worker/model/backend.h"

namespace centroid::worker {

using parallel::ShardedMemory;
using parallel::ShardedParameters;
using parallel::ShardLayout;

namespace {

std::vector<std::size_t> less(const std::vector<std::size_t>& units,
                              const std::vector<std::size_t>& without) {
  std::vector<std::size_t> out;
  std::ranges::copy_if(units, std::back_inserter(out), [&](std::size_t unit) {
    return std::ranges::find(without, unit) == without.end();
  });
  return out;
}

}  // namespace

Result<std::vector<parallel::ParameterShape>> parameter_shapes(const Model& model) {
  const std::unique_ptr<Model> own = model.clone();
  Layered* const layered = own->layered();
  if (layered == nullptr)
    return Error(ErrorCode::kInvalidArgument,
                 "model '" + model.spec() +
                     "' does not run layer by layer and cannot be sharded; use norm=none");
  const std::vector<std::uint32_t> layers = layered->layers();
  std::vector<parallel::ParameterShape> shapes;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const TensorInfo& tensor = model.manifest()[i];
    shapes.push_back({tensor.name, tensor.elements(), layers[i]});
  }
  return shapes;
}

std::vector<ShardedPass> plan_passes(const std::vector<Pass>& passes,
                                     const std::vector<std::uint32_t>& layers,
                                     const ShardLayout& layout) {
  const auto units_of = [&](const std::vector<std::uint32_t>& used) {
    std::vector<std::size_t> units;
    for (std::size_t tensor = 0; tensor < layers.size(); ++tensor)
      if (std::ranges::find(used, layers[tensor]) != used.end() &&
          (units.empty() || units.back() != layout.unit_of(tensor)))
        units.push_back(layout.unit_of(tensor));
    return units;
  };
  std::vector<ShardedPass> plan(passes.size());
  for (std::size_t i = 0; i < passes.size(); ++i) {
    plan[i].reads = units_of(passes[i].reads);
    plan[i].writes = plan[i].completes = units_of(passes[i].writes);
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::vector<std::size_t> none;
    const auto& next = i + 1 < plan.size() ? plan[i + 1].reads : none;
    plan[i].fetches = less(next, plan[i].reads);
    plan[i].releases = less(plan[i].reads, next);
    for (std::size_t later = i + 1; later < plan.size(); ++later)
      plan[i].completes = less(plan[i].completes, plan[later].writes);
  }
  return plan;
}

Result<std::unique_ptr<ShardedReplica>> ShardedReplica::make(
    const collective::Group& group, const Model& model, std::uint64_t seed,
    const parallel::ShardedOptions& options) {
  CENTROID_ASSIGN(auto shapes, parameter_shapes(model));
  const std::unique_ptr<Model> own = model.clone();
  const auto initial = [&](std::size_t index, std::span<float> out) -> Status {
    own->layered()->initialize_tensor(seed, TensorId(static_cast<std::uint32_t>(index)), out);
    return {};
  };
  CENTROID_ASSIGN(auto parameters,
                  ShardedParameters::make(group, std::move(shapes), options, initial));
  return std::make_unique<ShardedReplica>(group, model, std::move(parameters));
}

ShardedReplica::ShardedReplica(const collective::Group& group, const Model& model,
                               std::shared_ptr<ShardedParameters> parameters)
    : model_(model.clone()),
      layered_(*model_->layered()),
      rank_(group.rank()),
      world_(group.world()),
      parameters_(std::move(parameters)),
      training_(plan_passes(layered_.passes(true), layered_.layers(), parameters_->layout())),
      evaluation_(plan_passes(layered_.passes(false), layered_.layers(), parameters_->layout())),
      later_(parameters_->layout().units().size()) {
  places_.params.resize(model_->manifest().size());
  places_.gradients.resize(model_->manifest().size());
  measure();
}

void ShardedReplica::measure() {
  ShardedMemory now = parameters_->memory();
  now.gradients += std::exchange(now.spare, 0);
  if (now.total() > most_.total()) most_ = now;
}

Status ShardedReplica::gather(std::size_t unit) {
  CENTROID_TRY(parameters_->gather(unit));
  const parallel::Range tensors = parameters_->layout().units()[unit].parameters;
  for (std::size_t i = tensors.begin; i < tensors.end(); ++i) {
    CENTROID_ASSIGN(const std::span<const float> values, parameters_->parameter(i));
    places_.params[i] = values.data();
  }
  return {};
}

Status ShardedReplica::release(std::size_t unit) {
  const parallel::Range tensors = parameters_->layout().units()[unit].parameters;
  for (std::size_t i = tensors.begin; i < tensors.end(); ++i) places_.params[i] = nullptr;
  return parameters_->release(unit);
}

Status ShardedReplica::place_gradients(std::size_t unit, bool is_first) {
  const ShardLayout& layout = parameters_->layout();
  const parallel::Range tensors = layout.units()[unit].parameters;
  if (is_first)
    CENTROID_TRY(parameters_->take_gradient(unit));
  else if (!later_[unit])
    later_[unit] = parameters_->buffers().take(layout.ranks() * layout.shard(unit, 0).count);
  for (std::size_t i = tensors.begin; i < tensors.end(); ++i) {
    if (is_first) {
      CENTROID_ASSIGN(const std::span<float> gradient, parameters_->gradient(i));
      places_.gradients[i] = gradient.data();
    } else {
      places_.gradients[i] = later_[unit].as<float>().data() + layout.within_unit(i).begin;
    }
  }
  return {};
}

/// The batch's gradient of the unit is complete: weigh it, add it to that of the batches before,
/// and begin to reduce it.
Status ShardedReplica::complete(std::size_t unit, bool has_samples, bool is_first, float factor) {
  const ShardLayout& layout = parameters_->layout();
  const parallel::Range tensors = layout.units()[unit].parameters;
  for (std::size_t i = tensors.begin; i < tensors.end() && has_samples; ++i) {
    CENTROID_ASSIGN(const std::span<float> gradient, parameters_->gradient(i));
    if (!is_first) {
      const float* const own = later_[unit].as<float>().data() + layout.within_unit(i).begin;
      for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] += factor * own[k];
    } else if (factor != 1) {
      for (float& value : gradient) value *= factor;
    }
  }
  parameters_->buffers().give_back(std::move(later_[unit]));
  return parameters_->reduce(unit);
}

Status ShardedReplica::run(const Batch& batch, const std::vector<ShardedPass>& plan, bool is_first,
                           float factor) {
  const bool has_samples = batch.samples > 0, is_training = &plan == &training_;
  if (has_samples) layered_.begin(batch, places_, is_training);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const ShardedPass& pass = plan[i];
    for (const std::size_t unit : pass.reads) CENTROID_TRY(gather(unit));
    for (const std::size_t unit : pass.fetches) CENTROID_TRY(parameters_->prefetch(unit));
    for (const std::size_t unit : pass.writes)
      if (has_samples) CENTROID_TRY(place_gradients(unit, is_first));
    if (has_samples) layered_.run(i);
    measure();
    for (const std::size_t unit : pass.releases) CENTROID_TRY(release(unit));
    for (const std::size_t unit : pass.completes)
      CENTROID_TRY(complete(unit, has_samples, is_first, factor));
  }
  return {};
}

Result<ShardedStep> ShardedReplica::step(std::span<const Batch> batches,
                                         std::uint64_t all_samples) {
  if (batches.empty() || all_samples == 0)
    return Error(ErrorCode::kInvalidArgument, "a step without batches or samples");
  for (std::size_t i = 0; i < batches.size(); ++i) {
    parameters_->set_sync(i + 1 == batches.size());
    most_samples_ = std::max(most_samples_, batches[i].samples);
    const double share = static_cast<double>(batches[i].samples) / static_cast<double>(all_samples);
    CENTROID_TRY(run(batches[i], training_, i == 0, static_cast<float>(share * world_)));
  }
  ShardedStep out;
  out.result = model_->backend().result();
  CENTROID_TRY(model_->backend().status());
  fault::point("sharded.computed");
  CENTROID_ASSIGN(out.report, parameters_->step());
  measure();
  return out;
}

RankCosts ShardedReplica::costs() const {
  RankCosts out;
  const parallel::ShardedCosts& costs = parameters_->costs();
  out.transfers = {costs.gathers, costs.reductions, costs.copies, {}, costs.agreements};
  out.memory = most_;
  if (most_samples_ > 0) out.activation_bytes = model_->work_bytes(most_samples_, true);
  return out;
}

Result<StepResult> ShardedReplica::evaluate(const Batch& batch) {
  CENTROID_TRY(run(batch, evaluation_, true, 1));
  const StepResult result = model_->backend().result();
  CENTROID_TRY(model_->backend().status());
  return result;
}

Status ShardedReplica::visit(const Visit& visit) {
  const ShardLayout& layout = parameters_->layout();
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    CENTROID_TRY(parameters_->gather_exact(unit));
    const parallel::Range tensors = layout.units()[unit].parameters;
    for (std::size_t i = tensors.begin; i < tensors.end(); ++i) {
      CENTROID_ASSIGN(const std::span<const float> values, parameters_->parameter(i));
      CENTROID_TRY(visit(TensorId(static_cast<std::uint32_t>(i)), values));
    }
    CENTROID_TRY(parameters_->release(unit));
  }
  return {};
}

}  // namespace centroid::worker
