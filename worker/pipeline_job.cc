#include "worker/pipeline_job.h"

#include <string>
#include <utility>

#include "common/base/log.h"
#include "worker/node/group_memory.h"
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
  CENTROID_TRY(check_memory());
  CENTROID_ASSIGN(peers_, join_ranks(config_));
  return explain(make_replica());
}

Status PipelineJob::check_memory() {
  const auto rank = static_cast<std::uint32_t>(config_.sharded.rank);
  CENTROID_ASSIGN(const PipelineMemory need,
                  pipeline_memory(model_, options_, rank, config_.batch));
  const GroupMemory none = memory_of(model_, 1, config_.batch, data_, false);
  planned_ = need.planes;
  planned_.other = none.data + none.batch + need.activations;
  return check_limit(config_, planned_);
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
  own.stepped = [&](const ShardedSummary& now) {
    if (observer.stepped) observer.stepped(now);
    if (checkpoints_) checkpoints_->stepped(replica_->parameters(), now, planned_);
  };
  CENTROID_TRY(explain(train_sharded(*replica_, group(), data_, training, summary_, own)));
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
