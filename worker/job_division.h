#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/job_checkpoints.h"
#include "worker/model/model.h"
#include "worker/node/pipeline_replica.h"
#include "worker/parallel/regroup.h"
#include "worker/sharded_monitor.h"

namespace centroid::worker {

/// Refuse a job that needs this memory. A snapshot is not counted: without memory for it,
/// checkpoints are written in place.
///
/// fails  failed_precondition: the memory is too small, with the numbers
Status check_limit(const WorkerConfig& config, const parallel::ShardedMemory& need);

struct MadeReplica {
  std::unique_ptr<DividedReplica> replica;
  std::shared_ptr<parallel::ShardedParameters> parameters;
};

/// How a job of exchange sharded is divided among the workers of a group, as this rank sees it.
///
/// mesh    all workers are data parallel ranks, any number of them. With stages or parts of tensors
///         the mesh is the one that --parallel names, or Mesh::fit of fewer workers: the first ones
///         have its ranks, the others wait
/// bits    micro-batches are those of the mesh that --parallel names, so the number of stages does
///         not change them
/// thread  one at a time
class JobDivision {
 public:
  /// All references outlive it.
  JobDivision(const WorkerConfig& config, const Model& model, const DataSplit& data,
              const parallel::Mesh& wanted)
      : config_(config), model_(model), data_(data), wanted_(wanted) {
    options_.mesh = wanted;  // of those that begin
  }

  /// Whether there are stages or parts of tensors.
  bool has_parts() const;
  /// What can be checked before the others are met.
  ///
  /// fails  failed_precondition: the memory is too small; as stage_layers
  Status check() const;
  /// Divide the layers by their costs on rank 0, which measures them, and check that every rank has
  /// the memory for its part. With parts; else `check` has. Every rank of the group calls it.
  ///
  /// fails  failed_precondition: a memory is too small; all end with the reason of one
  Status measure(const collective::Group& group);
  /// Have the costs of rank `from` in place of own ones.
  Status share_costs(const collective::Group& group, std::uint32_t from);
  /// Whether other ranks have the shard of each.
  bool has_copies() const;
  /// Memory that a rank needs in a group of so many workers, without that of `beside`, which it has
  /// until all have their part. Null: nothing.
  ///
  /// fails  failed_precondition: it is too small, or no mesh fits so few workers
  Result<parallel::ShardedMemory> plan(std::uint32_t rank, std::uint32_t workers,
                                       const parallel::ShardedParameters* beside = nullptr) const;

  /// Divide the job among this group, from now on. Takes no memory of parameters.
  Status divide(const collective::Group& group);
  // Of this group:
  const PipelineOptions& options() const { return options_; }
  const parallel::Mesh& mesh() const { return options_.mesh; }
  std::string sharding() const { return options_.sharded.sharding.text(); }
  /// This rank has no part, and waits.
  bool waits() const { return !ranks_; }
  /// For what workers wait; empty: none waits.
  std::string waiting() const;
  /// This rank's layers; none: all, or it waits.
  parallel::Range layers() const { return stage_ ? stage_->layers : parallel::Range(); }
  parallel::Portion portion() const;
  std::uint32_t data_world() const { return mesh().size(parallel::Axis::kData); }
  /// That this rank is expected to need.
  const parallel::ShardedMemory& planned() const { return planned_; }
  /// Cost of the costliest stage over the mean of all, less 1. 0: equal, or not measured.
  double imbalance() const;
  /// "rank 3, data rank 1 of stage 1": of a rank of this group.
  std::string place_of(std::uint32_t rank) const;

  /// Null: there are none, or this rank waits. `run` as JobCheckpoints::open.
  Result<std::unique_ptr<JobCheckpoints>> open_checkpoints(const std::string& run) const;
  /// With the initial values.
  Result<MadeReplica> begin() const;
  Result<std::unique_ptr<parallel::ShardedParameters>> restore(JobCheckpoints& checkpoints,
                                                               ShardedSummary& summary) const;
  /// As parallel::regroup.
  Result<parallel::Regrouped> regroup(const collective::Group& group,
                                      const parallel::Earlier& old) const;
  /// `parameters`: null if this rank waits.
  std::unique_ptr<DividedReplica> make(
      std::shared_ptr<parallel::ShardedParameters> parameters) const;
  /// What the monitor shows; without the numbers of the workers.
  GroupShape shape(const parallel::ShardedParameters* parameters) const;

 private:
  Result<PipelineOptions> options_for(std::uint32_t workers) const;
  Result<std::vector<double>> measure_here() const;
  const parallel::ShardedOptions& own_options() const;

  const WorkerConfig& config_;
  const Model& model_;
  const DataSplit& data_;
  const parallel::Mesh wanted_;
  std::vector<double> costs_;  ///< of layers; empty: not measured
  PipelineOptions options_;
  parallel::ShardedMemory planned_;
  std::uint32_t workers_ = 0;
  std::optional<collective::Group> ranks_;  ///< those that have parts; none: this one waits
  std::optional<RankStage> stage_;          ///< with parts
};

}  // namespace centroid::worker
