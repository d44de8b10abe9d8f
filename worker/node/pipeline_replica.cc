#include "worker/node/pipeline_replica.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "transport/collective/collectives.h"
#include "worker/model/backend.h"
#include "worker/node/sharded_memory.h"
#include "worker/node/sharded_replica.h"
#include "worker/parallel/reducing.h"
#include "worker/parallel/stages.h"

namespace centroid::worker {

using parallel::Actions;
using parallel::Axis;
using parallel::ParameterShape;
using parallel::PipelineReport;
using parallel::Range;
using parallel::ShardedMemory;
using parallel::ShardedParameters;
using parallel::ShardLayout;

namespace {

Error refusal(const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, "pipeline: " + why);
}

/// The tensors of some layers.
Range tensors_of(std::span<const std::uint32_t> layer_of, Range layers) {
  const auto first = std::ranges::lower_bound(layer_of, layers.begin);
  const auto end = std::ranges::lower_bound(layer_of, layers.end());
  return {static_cast<std::uint64_t>(first - layer_of.begin()),
          static_cast<std::uint64_t>(end - first)};
}

std::vector<std::uint32_t> layers_of(const Model& model) {
  return model.clone()->layered()->layers();
}

std::uint64_t largest_layer(std::span<const ParameterShape> shapes) {
  std::uint64_t most = 0, sum = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    sum = (i > 0 && shapes[i].layer == shapes[i - 1].layer ? sum : 0) + shapes[i].elements;
    most = std::max(most, sum);
  }
  return most;
}

Batch part_of(const Batch& batch, const Model& model, Range part) {
  const auto cut = [&](const auto& values, std::uint64_t of_one) {
    return values.empty() ? values : values.subspan(part.begin * of_one, part.count * of_one);
  };
  Batch out = batch;
  out.samples = part.count;
  out.x = cut(batch.x, model.features());
  out.y = cut(batch.y, model.targets());
  out.tokens = cut(batch.tokens, model.features());
  out.lengths = cut(batch.lengths, 1);
  out.ids = cut(batch.ids, 1);
  return out;
}

/// The model of a tensor parallel rank.
Result<std::unique_ptr<Model>> cut_model(const Model& model, const PipelineOptions& options,
                                         std::uint32_t rank, PartReducer* reducer = nullptr) {
  std::unique_ptr<Model> own = model.clone();
  CENTROID_TRY(own->layered()->set_part({rank, options.mesh.size(Axis::kTensor), reducer}));
  return own;
}

/// Parts of an uneven vocabulary lie on other data ranks, of which three or more add up in another
/// order: the copies of whole tensors would drift apart.
/// So they would if numbers that parts do not share were rounded with them.
Status check_even(const Model& model, const PipelineOptions& options) {
  const parallel::Mesh& mesh = options.mesh;
  const std::uint32_t parts = mesh.size(Axis::kTensor);
  if (parts > 1 && (options.sharded.codec.has_blocks() || options.sharded.codec_down.has_blocks()))
    return refusal("mesh " + mesh.text() + ": tp has no codec int8, use bf16 or f32");
  if (parts == 1 || mesh.size(Axis::kData) < 3) return {};
  for (const auto& [what, number] :
       {std::pair("vocabulary", model.vocabulary()), std::pair("classes", model.classes())})
    if (number % parts != 0)
      return refusal("mesh " + mesh.text() + ": " + what + " " + std::to_string(number) +
                     " is no multiple of tp=" + std::to_string(parts) + ", which dp above 2 needs");
  return {};
}

/// The whole tensor, of the parts end to end, of which each has some of its columns.
void join_tensor(std::span<const Manifest> parts, std::size_t tensor, const TensorInfo& whole,
                 std::span<const float> values, std::span<float> out) {
  const std::uint64_t width = whole.shape.back();
  std::uint64_t first = 0;  // column
  for (const Manifest& part : parts) {
    const Shape& shape = part[tensor].shape;
    for (std::uint64_t row = 0; row < shape[0]; ++row)
      std::ranges::copy(values.subspan(row * shape[1], shape[1]),
                        out.begin() + static_cast<std::ptrdiff_t>(row * width + first));
    values = values.subspan(part[tensor].elements());
    first += shape[1];
  }
}

/// What encoded gradients need that are reduced one after the other.
std::uint64_t coded_elements(const parallel::ShardedOptions& options, const ShardLayout& layout,
                             std::uint32_t world) {
  const auto replicas = static_cast<std::uint32_t>(options.sharding.replica_ranks(0, world).size());
  std::uint64_t most = 0;
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
    most = std::max(most, parallel::Reducing::room(options.codec, layout, unit, replicas));
  return most * (1 + parallel::Reducing::in_progress(options.codec, layout.ranks(), replicas));
}

std::vector<Actions> only_forwards(std::uint32_t stages, std::uint32_t micro_batches) {
  Actions actions;
  for (std::uint32_t i = 0; i < micro_batches; ++i)
    actions.push_back({parallel::Action::Kind::kForward, i});
  return std::vector<Actions>(stages, actions);
}

}  // namespace

Result<std::vector<double>> matrix_elements(const Model& model) {
  CENTROID_ASSIGN(const auto shapes, parameter_shapes(model));
  std::vector<double> out(shapes.back().layer + 1);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const bool is_table = model.vocabulary() > 0 && shapes[i].layer == 0;  // rows are only read
    if (model.manifest()[i].shape.size() > 1 && !is_table)
      out[shapes[i].layer] += static_cast<double>(shapes[i].elements);
  }
  return out;
}

Result<std::vector<Range>> stage_layers(const Model& model, const PipelineOptions& options) {
  const std::uint32_t stages = options.mesh.size(Axis::kPipeline);
  CENTROID_ASSIGN(std::vector<double> costs, matrix_elements(model));
  CENTROID_ASSIGN(const std::unique_ptr<Model> own, cut_model(model, options, 0));
  CENTROID_TRY(check_even(model, options));
  for (const Pass& pass : own->layered()->passes(true))
    if (pass.reads.size() > 1)
      return refusal("model '" + model.spec() + "' has layers that share a tensor; use tied=no");
  const auto schedule = parallel::make_schedule(options.schedule, stages, options.micro_batches);
  if (!schedule.ok()) return schedule.error();
  if (!options.layer_costs.empty()) {
    if (options.layer_costs.size() != costs.size())
      return refusal("costs of " + std::to_string(options.layer_costs.size()) + " layers for " +
                     std::to_string(costs.size()));
    costs = options.layer_costs;
  }
  return parallel::split_into_stages(costs, stages);
}

Result<PipelineMemory> pipeline_memory(const Model& model, const PipelineOptions& options,
                                       std::uint32_t rank, std::uint64_t samples) {
  CENTROID_ASSIGN(const auto stages, stage_layers(model, options));
  const parallel::Place place = options.mesh.place_of(rank);
  CENTROID_ASSIGN(const std::unique_ptr<Model> own, cut_model(model, options, place.tensor));
  CENTROID_ASSIGN(const auto all, parameter_shapes(*own));
  CENTROID_ASSIGN(const auto optimizer, make_optimizer(options.sharded.optimizer));
  const std::uint32_t stage = place.pipeline;
  const Range layers = stages[stage];
  auto shapes = cut(all, tensors_of(layers_of(model), layers));
  const std::uint64_t scratch = largest_layer(shapes);
  const std::uint32_t world = options.mesh.size(Axis::kData);
  const parallel::Sharding& sharding = options.sharded.sharding;
  const auto ranks = static_cast<std::uint32_t>(sharding.shard_ranks(0, world).size());
  CENTROID_ASSIGN(const ShardLayout layout,
                  ShardLayout::make(std::move(shapes), ranks, options.sharded.least_elements));
  const std::uint64_t whole = layout.elements(), shard = layout.shard_elements(0);
  const bool has_copy =
      options.sharded.replicas > 0 && sharding.replica_ranks(0, world).size() == 1;
  const std::uint64_t copies = has_copy ? shard : 0;
  PipelineMemory need;
  need.planes.parameters =
      sizeof(float) * (whole + (sharding.shards_parameters() && ranks > 1 ? shard : 0) + copies);
  need.planes.gradients = sizeof(float) * (whole + scratch);  // means lie in their memory
  if (!sharding.shards_parameters())  // else memory of the parameters is spare then
    need.planes.gradients += sizeof(float) * (coded_elements(options.sharded, layout, world) +
                                              (has_copy ? copied_gradients(layout) : 0));
  if (sharding.kind == parallel::Sharding::Kind::kGrad && !options.sharded.codec_down.is_f32())
    need.planes.parameters += sizeof(float) * shard;
  need.planes.state = sizeof(float) * optimizer->slots() * (shard + copies);
  need.planes.snapshot = sizeof(float) * (1 + optimizer->slots()) * shard;
  CENTROID_ASSIGN(
      const auto schedule,
      parallel::make_schedule(options.schedule, static_cast<std::uint32_t>(stages.size()),
                              options.micro_batches));
  own->layered()->set_stage(static_cast<std::uint32_t>(layers.begin),
                            static_cast<std::uint32_t>(layers.end()));
  const std::uint64_t largest = (samples + options.micro_batches - 1) / options.micro_batches;
  need.activations = own->work_bytes(largest, true) * parallel::most_activations(schedule[stage]);
  return need;
}

Result<std::vector<Manifest>> part_manifests(const Model& model, const PipelineOptions& options) {
  std::vector<Manifest> out;
  for (std::uint32_t rank = 0; rank < options.mesh.size(Axis::kTensor); ++rank) {
    CENTROID_ASSIGN(const std::unique_ptr<Model> part, cut_model(model, options, rank));
    out.push_back(part->manifest());
  }
  return out;
}

Result<std::vector<std::vector<ParameterShape>>> part_shapes(const Model& model,
                                                             const PipelineOptions& options) {
  std::vector<std::vector<ParameterShape>> out;
  for (std::uint32_t rank = 0; rank < options.mesh.size(Axis::kTensor); ++rank) {
    CENTROID_ASSIGN(const std::unique_ptr<Model> own, cut_model(model, options, rank));
    CENTROID_ASSIGN(auto shapes, parameter_shapes(*own));
    for (std::size_t i = 0; i < shapes.size(); ++i)
      shapes[i].is_counted = rank == 0 || shapes[i].elements < model.manifest()[i].elements();
    out.push_back(std::move(shapes));
  }
  return out;
}

Result<RankStage> find_stage(const collective::Group& group, const Model& model,
                             const PipelineOptions& options) {
  if (options.mesh.world() != group.world())
    return refusal("mesh " + options.mesh.text() + " for " + std::to_string(group.world()) +
                   " ranks");
  CENTROID_ASSIGN(const auto stages, stage_layers(model, options));
  CENTROID_ASSIGN(auto line,
                  group.subgroup(options.mesh.ranks_along(Axis::kPipeline, group.rank())));
  CENTROID_ASSIGN(auto data, group.subgroup(options.mesh.ranks_along(Axis::kData, group.rank())));
  CENTROID_ASSIGN(auto tensor,
                  group.subgroup(options.mesh.ranks_along(Axis::kTensor, group.rank())));
  const Range layers = stages[line.rank()];
  RankStage out{std::move(line),
                std::move(data),
                std::move(tensor),
                layers,
                tensors_of(layers_of(model), layers),
                options.sharded};
  if (out.tensor.world() == 1) {
    out.sharded.parts = out.line;
    return out;
  }
  std::vector<std::uint32_t> parts;
  for (std::uint32_t rank = 0; rank < group.world(); ++rank)
    if (options.mesh.place_of(rank).data == out.data.rank()) parts.push_back(rank);
  CENTROID_ASSIGN(out.sharded.parts, group.subgroup(std::move(parts)));
  return out;
}

Result<std::unique_ptr<PipelineReplica>> PipelineReplica::make(const collective::Group& group,
                                                               const Model& model,
                                                               std::uint64_t seed,
                                                               const PipelineOptions& options) {
  CENTROID_ASSIGN(RankStage stage, find_stage(group, model, options));
  CENTROID_ASSIGN(const std::unique_ptr<Model> own, cut_model(model, options, stage.tensor.rank()));
  CENTROID_ASSIGN(const auto shapes, part_shapes(model, options));
  const auto initial = [&](std::size_t index, std::span<float> out) -> Status {
    const auto tensor = static_cast<std::uint32_t>(stage.tensors.begin + index);
    own->layered()->initialize_tensor(seed, TensorId(tensor), out);
    return {};
  };
  CENTROID_ASSIGN(auto parameters, ShardedParameters::make(
                                       stage.data, cut(shapes[stage.tensor.rank()], stage.tensors),
                                       stage.sharded, initial));
  return std::make_unique<PipelineReplica>(group, model, options, std::move(stage),
                                           std::move(parameters));
}

PipelineReplica::PipelineReplica(const collective::Group& group, const Model& model,
                                 const PipelineOptions& options, RankStage stage,
                                 std::shared_ptr<ShardedParameters> parameters)
    : group_(group),
      line_(std::move(stage.line)),
      data_(std::move(stage.data)),
      tensor_(std::move(stage.tensor)),
      options_(options),
      reducer_(tensor_, options.sharded.timeout),
      whole_(model.clone()),
      model_(std::move(cut_model(model, options, tensor_.rank(), &reducer_)).value()),
      layer_of_(model_->layered()->layers()),
      layers_(stage.layers),
      tensors_(stage.tensors),
      passes_(static_cast<std::uint32_t>(model_->layered()->passes(true).size())),
      parameters_(std::move(parameters)),
      schedule_(
          std::move(parallel::make_schedule(options.schedule, line_.world(), options.micro_batches))
              .value()),
      scratch_(largest_layer(parameters_->layout().parameters())) {
  places_.params.resize(model_->manifest().size());
  places_.gradients.resize(model_->manifest().size());
  // A layer's gradient is added to the stage's after each pass.
  std::uint64_t position = 0;
  for (std::size_t i = tensors_.begin; i < tensors_.end(); ++i) {
    if (i == tensors_.begin || layer_of_[i] != layer_of_[i - 1]) position = 0;
    places_.gradients[i] = scratch_.data() + position;
    position += model_->manifest()[i].elements();
  }
}

void PipelineReplica::divide(const Batch& batch, std::uint32_t parts) {
  micro_batches_.clear();
  for (std::uint32_t i = 0; i < parts; ++i)
    micro_batches_.push_back(part_of(batch, *model_, parallel::shard_of(batch.samples, parts, i)));
  result_ = {};
}

Status PipelineReplica::gather(bool is_exact) {
  const ShardLayout& layout = parameters_->layout();
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
    CENTROID_TRY(is_exact ? parameters_->gather_exact(unit) : parameters_->gather(unit));
    if (!is_exact && unit + 1 < layout.units().size())
      CENTROID_TRY(parameters_->prefetch(unit + 1));
  }
  for (std::size_t i = 0; i < tensors_.count; ++i) {
    CENTROID_ASSIGN(const auto values, parameters_->parameter(i));
    places_.params[tensors_.begin + i] = values.data();
  }
  return {};
}

Status PipelineReplica::release() {
  for (std::size_t unit = 0; unit < parameters_->layout().units().size(); ++unit)
    CENTROID_TRY(parameters_->release(unit));
  return {};
}

std::size_t PipelineReplica::input_elements(std::uint32_t micro_batch) const {
  if (layers_.begin == 0) return 0;
  return micro_batches_[micro_batch].samples *
         model_->layered()->border(static_cast<std::uint32_t>(layers_.begin));
}

std::size_t PipelineReplica::output_elements(std::uint32_t micro_batch) const {
  if (line_.rank() + 1 == line_.world()) return 0;
  return micro_batches_[micro_batch].samples *
         model_->layered()->border(static_cast<std::uint32_t>(layers_.end()));
}

PipelineReplica::Seat& PipelineReplica::take_seat(std::uint32_t micro_batch) {
  auto free = std::ranges::find(seats_, false, &Seat::is_taken);
  if (free == seats_.end()) {
    seats_.push_back({model_->clone()});
    free = std::prev(seats_.end());
    free->model->layered()->set_stage(static_cast<std::uint32_t>(layers_.begin),
                                      static_cast<std::uint32_t>(layers_.end()));
  }
  free->is_taken = true;
  free->micro_batch = micro_batch;
  return *free;
}

/// Compute a layer, and add its gradient to the stage's if this pass has it.
Status PipelineReplica::run_pass(Seat& seat, std::uint32_t layer, bool is_backward) {
  const std::uint32_t back = passes_ - 1 - layer;
  if (is_backward && back == layer) return {};  // the forward did both
  seat.model->layered()->run(is_backward ? back : layer);
  CENTROID_TRY(reducer_.status());
  if (!is_training_ || (!is_backward && back != layer)) return {};
  return accumulate(layer, micro_batches_[seat.micro_batch].samples);
}

Status PipelineReplica::accumulate(std::uint32_t layer, std::uint64_t samples) {
  const double share = static_cast<double>(samples) / static_cast<double>(all_samples_);
  const auto factor = static_cast<float>(share * data_.world());
  const Range of_layer = tensors_of(layer_of_, {layer, 1});
  for (std::size_t i = of_layer.begin; i < of_layer.end(); ++i) {
    CENTROID_ASSIGN(const std::span<float> sum, parameters_->gradient(i - tensors_.begin));
    const float* const own = places_.gradients[i];
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += factor * own[k];
  }
  return {};
}

Status PipelineReplica::forward(std::uint32_t micro_batch, std::span<const float> input,
                                std::span<float> output) {
  const Batch& batch = micro_batches_[micro_batch];
  if (batch.samples == 0) return {};
  Seat& seat = take_seat(micro_batch);
  received_ += input.size_bytes();
  most_samples_ = std::max(most_samples_, batch.samples);
  Layered& layered = *seat.model->layered();
  layered.begin(batch, places_, is_training_);
  if (!input.empty()) std::ranges::copy(input, layered.stage_input());
  for (auto layer = static_cast<std::uint32_t>(layers_.begin); layer < layers_.end(); ++layer)
    CENTROID_TRY(run_pass(seat, layer, false));
  if (!output.empty()) std::copy_n(layered.stage_output(), output.size(), output.data());
  const StepResult own = seat.model->backend().result();
  CENTROID_TRY(seat.model->backend().status());
  if (tensor_.rank() == 0) {  // the others have the same
    result_.loss_sum += own.loss_sum;
    result_.correct += own.correct;
    result_.targets += own.targets;
  }
  seat.is_taken = is_training_;
  return {};
}

Status PipelineReplica::backward(std::uint32_t micro_batch, std::span<const float> output_gradient,
                                 std::span<float> input_gradient) {
  if (micro_batches_[micro_batch].samples == 0) return {};
  const auto seat = std::ranges::find_if(
      seats_, [&](const Seat& one) { return one.is_taken && one.micro_batch == micro_batch; });
  Layered& layered = *seat->model->layered();
  received_ += output_gradient.size_bytes();
  if (!output_gradient.empty()) std::ranges::copy(output_gradient, layered.stage_gradient());
  for (std::uint64_t layer = layers_.end(); layer > layers_.begin; --layer)
    CENTROID_TRY(run_pass(*seat, static_cast<std::uint32_t>(layer - 1), true));
  std::copy_n(layered.stage_gradient(), input_gradient.size(), input_gradient.data());
  seat->is_taken = false;
  return seat->model->backend().status();
}

Result<PipelineReport> PipelineReplica::run(std::span<const Actions> schedule) {
  CENTROID_TRY(gather());
  CENTROID_ASSIGN(const PipelineReport done,
                  parallel::run_pipeline(line_, schedule, *this, options_.sharded.timeout));
  ShardedMemory now = parameters_->memory();
  now.gradients += std::exchange(now.spare, 0) + scratch_.size() * sizeof(float);
  if (now.total() > most_.total()) most_ = now;
  CENTROID_TRY(release());
  return done;
}

Result<ShardedStep> PipelineReplica::step(std::span<const Batch> batches,
                                          std::uint64_t all_samples) {
  if (batches.size() != 1 || all_samples == 0)
    return refusal("a step has one batch on each rank, and samples");
  divide(batches[0], options_.micro_batches);
  all_samples_ = all_samples;
  is_training_ = true;
  Result<ShardedStep> done = run_step();
  if (!done.ok()) return fail(done.error());
  return done;
}

Result<ShardedStep> PipelineReplica::run_step() {
  CENTROID_ASSIGN(const PipelineReport done, run(schedule_));
  report_.computing += done.computing;
  report_.all += done.all;
  fault::point("sharded.computed");
  for (std::size_t unit = parameters_->layout().units().size(); unit > 0; --unit)
    CENTROID_TRY(parameters_->reduce(unit - 1));
  ShardedStep out;
  out.result = result_;
  CENTROID_ASSIGN(out.report, parameters_->step());
  return out;
}

RankCosts PipelineReplica::costs() const {
  RankCosts out;
  parallel::Transfers passed = reducer_.transfers();
  passed.bytes += received_;
  passed.seconds += (report_.all - report_.computing).count();
  const parallel::ShardedCosts& costs = parameters_->costs();
  out.transfers = {costs.gathers, costs.reductions, costs.copies, passed, costs.agreements};
  out.memory = most_;
  for (const Seat& seat : seats_)
    out.activation_bytes += seat.model->work_bytes(most_samples_, true);
  out.pipeline = report_;
  return out;
}

Result<StepResult> PipelineReplica::evaluate(const Batch& batch) {
  divide(batch, line_.world());
  is_training_ = false;
  const auto schedule = only_forwards(line_.world(), line_.world());
  if (const auto done = run(schedule); !done.ok()) return fail(done.error());
  return result_;
}

/// End the operations of all groups on all ranks, so that each learns the cause.
Error PipelineReplica::fail(const Error& cause) {
  for (const collective::Group* group : {&group_, &line_, &data_, &tensor_}) group->abort(cause);
  return parameters_->fail(cause);
}

Status PipelineReplica::visit(const Visit& visit) {
  if (const Status done = visit_stages(visit); !done.ok()) return fail(done.error());
  return {};
}

Status PipelineReplica::visit_stages(const Visit& visit) {
  for (std::uint32_t stage = 0; stage < line_.world(); ++stage) {
    if (stage == line_.rank()) {
      CENTROID_TRY(gather(true));
      CENTROID_TRY(send_stage(visit));
      CENTROID_TRY(release());
    } else if (group_.rank() == 0) {
      CENTROID_TRY(receive_stage(stage, visit));
    }
  }
  return {};
}

/// On the first tensor rank; `parts` by tensor rank.
Result<std::span<const float>> PipelineReplica::join_parts(std::size_t tensor,
                                                           std::span<const Manifest> parts,
                                                           std::vector<float>& whole) {
  const TensorInfo& info = whole_->manifest()[tensor];
  const std::span<const float> own(places_.params[tensor], model_->manifest()[tensor].elements());
  if (own.size() == info.elements()) return own;
  std::vector<std::uint64_t> counts;
  for (const Manifest& part : parts) counts.push_back(part[tensor].elements());
  const bool is_first = tensor_.rank() == 0;
  std::vector<float> values(is_first ? info.elements() : 0);
  CENTROID_TRY(collective::gather(tensor_, own, std::span(values), 0, {}, counts));
  if (!is_first) return own;
  if (parts[0][tensor].shape.back() == info.shape.back()) {  // some rows each
    whole = std::move(values);
    return std::span<const float>(whole);
  }
  whole.resize(values.size());
  join_tensor(parts, tensor, info, values, whole);
  return std::span<const float>(whole);
}

/// To rank 0, from the first rank of the stage.
Status PipelineReplica::send_stage(const Visit& visit) {
  if (data_.rank() > 0) return {};
  CENTROID_ASSIGN(const std::vector<Manifest> parts, part_manifests(*whole_, options_));
  std::vector<float> whole;
  for (std::size_t i = tensors_.begin; i < tensors_.end(); ++i) {
    CENTROID_ASSIGN(const auto values, join_parts(i, parts, whole));
    if (tensor_.rank() > 0) continue;
    CENTROID_TRY(group_.rank() == 0 ? visit(TensorId(static_cast<std::uint32_t>(i)), values)
                                    : collective::send(line_, values, 0));
  }
  return {};
}

Status PipelineReplica::receive_stage(std::uint32_t stage, const Visit& visit) {
  CENTROID_ASSIGN(const auto stages, stage_layers(*whole_, options_));
  const Range tensors = tensors_of(layer_of_, stages[stage]);
  std::vector<float> values;
  for (std::size_t i = tensors.begin; i < tensors.end(); ++i) {
    values.resize(whole_->manifest()[i].elements());
    CENTROID_TRY(collective::receive(line_, std::span<float>(values), stage));
    CENTROID_TRY(visit(TensorId(static_cast<std::uint32_t>(i)), values));
  }
  return {};
}

}  // namespace centroid::worker
