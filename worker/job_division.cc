#include "worker/job_division.h"

#include <numeric>
#include <utility>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "worker/node/job_memory.h"
#include "worker/node/layer_costs.h"
#include "worker/node/sharded_replica.h"
#include "worker/parallel/agreement.h"
#include "worker/parallel/sharded_settings.h"
#include "worker/parallel/stages.h"

namespace centroid::worker {

using parallel::Axis;
using parallel::ShardedMemory;
using parallel::ShardedOptions;
using parallel::ShardedParameters;

namespace {

parallel::ShardedSettings settings_of(const WorkerConfig& config) {
  parallel::ShardedSettings out;
  out.sharding = config.sharded.sharding;
  out.replicas = config.sharded.replicas;
  out.codec = config.codec;
  out.codec_down = config.sharded.codec_down;
  out.optimizer = config.optimizer;
  return out;
}

}  // namespace

Status check_limit(const WorkerConfig& config, const ShardedMemory& need) {
  const MemoryLimit limit = memory_limit(config.memory_limit);
  const std::uint64_t all = need.total();
  if (all <= limit.bytes) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  return Error(ErrorCode::kFailedPrecondition,
               "this rank needs " + text(all) + " bytes, " + limit.source + " allows " +
                   text(limit.bytes) + ": " + text(need.parameters) + " for parameters, " +
                   text(need.gradients) + " for gradients, " + text(need.state) +
                   " for the optimizer, " + text(need.other) +
                   " for data, batch and activations. Start more ranks, or lower --batch; "
                   "--sharding full with --shard-replicas 0 needs the least");
}

bool JobDivision::has_parts() const {
  return wanted_.size(Axis::kPipeline) > 1 || wanted_.size(Axis::kTensor) > 1;
}

Result<PipelineOptions> JobDivision::options_for(std::uint32_t workers) const {
  PipelineOptions out;
  if (has_parts()) {
    const auto mesh = wanted_.fit(workers);
    if (!mesh)
      return Error(ErrorCode::kFailedPrecondition,
                   std::to_string(workers) + " workers are too few for the parts of a layer in " +
                       wanted_.text());
    out.mesh = *mesh;
  } else {
    CENTROID_ASSIGN(out.mesh, parallel::Mesh::parse("", workers));
  }
  out.micro_batches =
      static_cast<std::uint32_t>(config_.sharded.micro_batches_of(wanted_.size(Axis::kPipeline)));
  CENTROID_ASSIGN(out.schedule, parallel::parse_schedule(config_.sharded.schedule));
  CENTROID_ASSIGN(out.sharded, settings_of(config_).options(out.mesh.size(Axis::kData),
                                                            out.mesh.world() == wanted_.world()));
  out.layer_costs = costs_;
  return out;
}

Status JobDivision::check() const {
  CENTROID_ASSIGN(const PipelineOptions options, options_for(wanted_.world()));
  if (has_parts())
    CENTROID_TRY(stage_layers(model_, options));
  else
    CENTROID_TRY(plan(0, wanted_.world()));
  return {};
}

/// Which layers are here, and so how much memory they need, is known after rank 0 has measured
/// them. A split by other costs would refuse jobs that fit, and accept others. All ranks check
/// their memory before any takes it, so all end with the reason of one.
Status JobDivision::measure(const collective::Group& group) {
  if (!has_parts()) return {};
  if (group.rank() == 0 && wanted_.size(Axis::kPipeline) > 1) {
    auto measured = measure_here();
    if (measured.ok())
      costs_ = std::move(*measured);
    else
      log::warn("pipeline.not_measured", {{"error", measured.error()}});
  }
  CENTROID_TRY(share_costs(group, 0));
  const auto need = plan(group.rank(), group.world());
  parallel::Notice own;
  if (!need.ok()) own.status = need.error();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group, own, config_.join_timeout));
  return parallel::first_failure(all);
}

/// The costs of a micro-batch, unless their measurement needs more memory than there is.
Result<std::vector<double>> JobDivision::measure_here() const {
  CENTROID_ASSIGN(const PipelineOptions options, options_for(wanted_.world()));
  const std::uint64_t samples = (config_.batch + options.micro_batches - 1) / options.micro_batches;
  CENTROID_ASSIGN(const std::uint64_t need, measuring_bytes(model_, samples));
  const MemoryLimit limit = memory_limit(config_.memory_limit);
  if (need > limit.bytes)
    return Error(ErrorCode::kFailedPrecondition,
                 "measuring a layer needs " + std::to_string(need) + " bytes, " + limit.source +
                     " allows " + std::to_string(limit.bytes) +
                     ": the stages have equally many elements instead");
  CENTROID_ASSIGN(const auto costs, measure_layers(model_, samples));
  return sums_of(costs);
}

Status JobDivision::share_costs(const collective::Group& group, std::uint32_t from) {
  if (!has_parts()) return {};
  CENTROID_ASSIGN(const auto shapes, parameter_shapes(model_));
  CENTROID_ASSIGN(costs_, agree_on_costs(group, shapes.back().layer + 1, costs_, from));
  return {};
}

Result<ShardedMemory> JobDivision::plan(std::uint32_t rank, std::uint32_t workers,
                                        const parallel::ShardedParameters* beside) const {
  CENTROID_ASSIGN(const PipelineOptions options, options_for(workers));
  ShardedMemory need;
  if (!has_parts()) {
    CENTROID_ASSIGN(need, job_memory(model_, options.sharded, workers, config_.batch, data_));
  } else if (rank < options.mesh.world()) {
    CENTROID_ASSIGN(need, job_memory(model_, options, rank, config_.batch, data_));
  }
  ShardedMemory all = need;
  if (beside != nullptr) {
    all.parameters += beside->memory().parameters;
    all.state += beside->memory().state;
  }
  CENTROID_TRY(check_limit(config_, all));
  return need;
}

bool JobDivision::has_copies() const {
  const ShardedOptions& sharded = options_.sharded;
  return sharded.replicas > 0 || sharded.sharding.replica_ranks(0, data_world()).size() > 1;
}

Status JobDivision::divide(const collective::Group& group) {
  ranks_.reset();
  stage_.reset();
  workers_ = group.world();
  CENTROID_ASSIGN(options_, options_for(workers_));
  CENTROID_ASSIGN(planned_, plan(group.rank(), workers_));
  if (group.rank() >= mesh().world()) return {};
  ranks_ = group;
  if (mesh().world() < workers_) {
    std::vector<std::uint32_t> first(mesh().world());
    std::iota(first.begin(), first.end(), 0);
    CENTROID_ASSIGN(ranks_, group.subgroup(std::move(first)));
  }
  if (!has_parts()) return {};
  CENTROID_ASSIGN(stage_, find_stage(*ranks_, model_, options_));
  return {};
}

std::string JobDivision::waiting() const {
  if (workers_ == mesh().world()) return "";
  const auto next = wanted_.next_size(workers_);
  const std::string there = "there are " + std::to_string(workers_);
  if (!next) return "the loss of a rank of " + mesh().text() + ": " + there;
  return wanted_.fit(*next)->text() + " needs " + std::to_string(*next) + " workers, " + there;
}

parallel::Portion JobDivision::portion() const {
  if (stage_) return {stage_->tensor.rank(), stage_->tensors};
  return {0, {0, waits() ? 0 : model_.manifest().size()}};
}

const ShardedOptions& JobDivision::own_options() const {
  return stage_ ? stage_->sharded : options_.sharded;
}

double JobDivision::imbalance() const {
  if (options_.layer_costs.empty()) return 0;
  const auto stages = stage_layers(model_, options_);
  return stages.ok() ? parallel::imbalance(options_.layer_costs, *stages) : 0;
}

std::string JobDivision::place_of(std::uint32_t rank) const {
  if (rank >= mesh().world()) return "rank " + std::to_string(rank) + ", which waited";
  const parallel::Place place = mesh().place_of(rank);
  const bool has_tensor_ranks = mesh().size(Axis::kTensor) > 1;
  return "rank " + std::to_string(rank) + ", data rank " + std::to_string(place.data) +
         " of stage " + std::to_string(place.pipeline) +
         (has_tensor_ranks ? ", tensor rank " + std::to_string(place.tensor) : "");
}

Result<std::unique_ptr<JobCheckpoints>> JobDivision::open_checkpoints(
    const std::string& run) const {
  if (waits() || config_.checkpoint.dir.empty()) return std::unique_ptr<JobCheckpoints>();
  std::optional<parallel::CheckpointStage> own;
  if (stage_) {
    const std::uint32_t stages = stage_->line.world(), part = stage_->tensor.rank();
    own = parallel::CheckpointStage{stage_->data, stage_->tensors,
                                    part * stages + stage_->line.rank(),
                                    stage_->tensor.world() * stages};
    own->part = part;
    if (stage_->tensor.world() > 1) {
      CENTROID_ASSIGN(own->parts, part_manifests(model_, options_));
    }
  }
  return JobCheckpoints::open(config_, model_, data_, *ranks_, run, own);
}

Result<MadeReplica> JobDivision::begin() const {
  MadeReplica out;
  if (stage_) {
    CENTROID_ASSIGN(auto made, PipelineReplica::make(*ranks_, model_, config_.seed, options_));
    out.parameters = made->parameters();
    out.replica = std::move(made);
  } else {
    CENTROID_ASSIGN(auto made,
                    ShardedReplica::make(*ranks_, model_, config_.seed, options_.sharded));
    out.parameters = made->parameters();
    out.replica = std::move(made);
  }
  return out;
}

Result<std::unique_ptr<ShardedParameters>> JobDivision::restore(JobCheckpoints& checkpoints,
                                                                ShardedSummary& summary) const {
  if (!stage_) {
    CENTROID_ASSIGN(auto shapes, parameter_shapes(model_));
    return checkpoints.restore(std::move(shapes), own_options(), summary);
  }
  CENTROID_ASSIGN(const auto shapes, part_shapes(model_, options_));
  return checkpoints.restore(cut(shapes[stage_->tensor.rank()], stage_->tensors), own_options(),
                             summary);
}

Result<parallel::Regrouped> JobDivision::regroup(const collective::Group& group,
                                                 const parallel::Earlier& old) const {
  CENTROID_ASSIGN(const auto models, part_shapes(model_, options_));
  std::optional<parallel::Later> next;
  if (!waits()) next = parallel::Later{stage_ ? stage_->data : *ranks_, portion(), own_options()};
  return parallel::regroup(group, models, options_.sharded, old, next);
}

std::unique_ptr<DividedReplica> JobDivision::make(
    std::shared_ptr<ShardedParameters> parameters) const {
  if (waits()) return std::make_unique<IdleReplica>(model_, data_world());
  if (stage_)
    return std::make_unique<PipelineReplica>(*ranks_, model_, options_, *stage_,
                                             std::move(parameters));
  return std::make_unique<ShardedReplica>(*ranks_, model_, std::move(parameters));
}

GroupShape JobDivision::shape(const ShardedParameters* parameters) const {
  GroupShape out;
  out.mesh = mesh();
  out.sharding = sharding();
  out.waiting = waiting();
  out.own.shards = 0;
  if (parameters != nullptr) out.own = part_of(*parameters);
  out.own.layers = layers();
  return out;
}

}  // namespace centroid::worker
