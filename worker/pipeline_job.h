#pragma once

#include <memory>
#include <vector>

#include "client/group.h"
#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/job_checkpoints.h"
#include "worker/model/model.h"
#include "worker/node/pipeline_replica.h"
#include "worker/node/sharded_training.h"
#include "worker/sharded_monitor.h"

namespace centroid::worker {

/// A job of exchange sharded whose layers or tensors are divided among ranks, on this rank. A lost
/// rank ends it: a part of the model has no copy.
///
/// order   every rank makes the same calls
class PipelineJob {
 public:
  PipelineJob(const WorkerConfig& config, const Model& model, const DataSplit& data,
              const parallel::Mesh& mesh, ShardedMonitor& monitor)
      : config_(config), model_(model), data_(data), mesh_(mesh), monitor_(monitor) {}

  /// Join the other ranks, divide the layers by their costs on rank 0, and restore the newest
  /// checkpoint or draw the initial values.
  ///
  /// fails  before the stage's memory is taken, failed_precondition: it is too small, on any rank;
  ///        as stage_layers, PeerGroup::join, JobCheckpoints and PipelineReplica::make
  Status begin();
  /// Train until the goal is reached or a rank wants to stop, and write the last checkpoint.
  ///
  /// fails  as train_sharded, explained
  Status train(const ShardedObserver& observer);
  /// Add the place of a rank that was lost, and what to do.
  Status explain(const Status& result) const;

  const collective::Group& group() const { return peers_->group(); }
  PipelineReplica& replica() { return *replica_; }
  const ShardedSummary& summary() const { return summary_; }
  const PipelineOptions& options() const { return options_; }
  /// Cost of the costliest stage over the mean of all, less 1. 0: equal, or not measured.
  double imbalance() const;

 private:
  Status divide_layers();
  Result<std::vector<double>> measure();
  Status check_memory();
  Status make_replica();
  Status show();

  const WorkerConfig& config_;
  const Model& model_;
  const DataSplit& data_;
  const parallel::Mesh& mesh_;
  ShardedMonitor& monitor_;
  PipelineOptions options_;
  parallel::ShardedMemory planned_;
  ShardedSummary summary_;
  std::unique_ptr<client::PeerGroup> peers_;
  std::unique_ptr<JobCheckpoints> checkpoints_;  ///< null: none are written
  std::unique_ptr<PipelineReplica> replica_;
};

}  // namespace centroid::worker
