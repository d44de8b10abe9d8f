#include "worker/pipeline_job.h"

#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "worker/node/job_memory.h"
#include "worker/node/layer_costs.h"
#include "worker/parallel/agreement.h"
#include "worker/parallel/stages.h"
#include "worker/sharded_job.h"

namespace centroid::worker {

namespace {

Result<PipelineOptions> pipeline_options(const WorkerConfig& config, const parallel::Mesh& mesh) {
  PipelineOptions out;
  out.mesh = mesh;
  const std::uint32_t stages = mesh.size(parallel::Axis::kPipeline);
  out.micro_batches = static_cast<std::uint32_t>(config.sharded.micro_batches_of(stages));
  CENTROID_ASSIGN(out.schedule, parallel::parse_schedule(config.sharded.schedule));
  CENTROID_ASSIGN(out.sharded, sharded_options(config, mesh.size(parallel::Axis::kData)));
  out.sharded.replicas = 0;
  return out;
}

}  // namespace

Status PipelineJob::begin() {
  CENTROID_ASSIGN(options_, pipeline_options(config_, mesh_));
  CENTROID_TRY(stage_layers(model_, options_));  // whether there are such stages
  CENTROID_ASSIGN(peers_, join_ranks(config_));
  CENTROID_TRY(explain(check_same_settings(group(), config_, model_, data_)));
  CENTROID_TRY(explain(divide_layers()));
  CENTROID_TRY(explain(make_replica()));
  return explain(show());
}

/// Exchange with the others what each has.
Status PipelineJob::show() {
  GroupShape shape;
  shape.mesh = mesh_;
  shape.sharding = options_.sharded.sharding.text();
  for (std::uint32_t rank = 0; rank < group().world(); ++rank) shape.numbers.push_back(rank);
  shape.own = part_of(replica_->parameters());
  shape.own.layers = replica_->layers();
  return monitor_.begin_group(group(), std::move(shape));
}

/// Which layers are here, and so how much memory they need, is known after rank 0 has measured
/// them. A split by other costs would refuse jobs that fit, and accept others. All ranks check
/// their memory before any takes it, so all end with the reason of one.
Status PipelineJob::divide_layers() {
  CENTROID_ASSIGN(const auto shapes, parameter_shapes(model_));
  std::vector<double> costs;
  if (group().rank() == 0 && mesh_.size(parallel::Axis::kPipeline) > 1) {
    auto measured = measure();
    if (measured.ok())
      costs = std::move(*measured);
    else
      log::warn("pipeline.not_measured", {{"error", measured.error()}});
  }
  CENTROID_ASSIGN(options_.layer_costs,
                  agree_on_costs(group(), shapes.back().layer + 1, std::move(costs)));
  parallel::Notice own;
  own.status = check_memory();
  CENTROID_ASSIGN(const auto all, parallel::exchange(group(), own, config_.join_timeout));
  return parallel::first_failure(all);
}

/// The costs of a micro-batch, unless their measurement needs more memory than there is.
Result<std::vector<double>> PipelineJob::measure() {
  const std::uint64_t samples =
      (config_.batch + options_.micro_batches - 1) / options_.micro_batches;
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

Status PipelineJob::check_memory() {
  CENTROID_ASSIGN(planned_, job_memory(model_, options_, group().rank(), config_.batch, data_));
  return check_limit(config_, planned_);
}

double PipelineJob::imbalance() const {
  if (options_.layer_costs.empty()) return 0;
  const auto stages = stage_layers(model_, options_);
  return stages.ok() ? parallel::imbalance(options_.layer_costs, *stages) : 0;
}

Status PipelineJob::make_replica() {
  CENTROID_ASSIGN(RankStage stage, find_stage(group(), model_, options_));
  if (!config_.checkpoint.dir.empty()) {
    const parallel::CheckpointStage own{stage.data, stage.tensors, stage.line.rank(),
                                        stage.line.world()};
    CENTROID_ASSIGN(checkpoints_, JobCheckpoints::open(config_, model_, data_, group(), {}, own));
  }
  if (checkpoints_ && checkpoints_->resumes()) {
    CENTROID_ASSIGN(auto restored, checkpoints_->restore(stage.sharded, summary_));
    replica_ = std::make_unique<PipelineReplica>(group(), model_, options_, std::move(stage),
                                                 std::move(restored));
    return {};
  }
  CENTROID_ASSIGN(replica_, PipelineReplica::make(group(), model_, config_.seed, options_));
  return {};
}

Status PipelineJob::train(const ShardedObserver& observer) {
  ShardedTrainingOptions training;
  training.batch = config_.batch;
  training.seed = config_.seed;
  training.epochs = config_.epochs;
  training.steps = config_.rounds;
  ShardedObserver own = observer;
  own.stepped = [&](const ShardedSummary& now, const StepTimes& times) {
    if (observer.stepped) observer.stepped(now, times);
    if (checkpoints_) checkpoints_->stepped(replica_->parameters(), now, planned_);
  };
  monitor_.enter(ShardedMonitor::Phase::kTraining);
  const ShardedObserver seen = monitor_.observe(own, *replica_, group());
  CENTROID_TRY(explain(train_sharded(*replica_, group(), data_, training, summary_, seen)));
  if (checkpoints_) checkpoints_->finish(replica_->parameters(), summary_);
  return {};
}

Status PipelineJob::explain(const Status& result) const {
  if (result.ok() || !group().culprit()) return result;
  const parallel::Place place = mesh_.place_of(*group().culprit());
  const char* const advice =
      checkpoints_ ? "with --resume, to go on from the newest checkpoint" : "from the beginning";
  const std::string tensor_rank = mesh_.size(parallel::Axis::kTensor) > 1
                                      ? ", tensor rank " + std::to_string(place.tensor)
                                      : std::string();
  return result.error().with_context("rank " + std::to_string(*group().culprit()) + ", data rank " +
                                     std::to_string(place.data) + " of stage " +
                                     std::to_string(place.pipeline) + tensor_rank +
                                     ", was lost; start all ranks again, " + advice);
}

}  // namespace centroid::worker
