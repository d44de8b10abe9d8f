#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "client/job_group.h"
#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/job_checkpoints.h"
#include "worker/job_division.h"
#include "worker/model/model.h"
#include "worker/node/sharded_training.h"
#include "worker/parallel/generations.h"
#include "worker/sharded_monitor.h"

namespace centroid::worker {

/// A job of exchange sharded on this rank, over all its groups. When ranks are lost, those that are
/// left meet, make a group of their own, and take over the lost shards from their copies; without
/// these from the newest checkpoint. A worker that comes later joins them between two steps, and
/// gets its shard from theirs, or waits for more of them (JobDivision).
///
/// order   every rank makes the same calls
class ShardedJob {
 public:
  ShardedJob(const WorkerConfig& config, const Model& model, const DataSplit& data,
             const parallel::Mesh& wanted, ShardedMonitor& monitor)
      : config_(config),
        model_(model),
        data_(data),
        monitor_(monitor),
        division_(config, model, data, wanted) {}

  /// Join the other ranks, and restore the newest checkpoint or draw the initial values. Or join a
  /// job that they have begun.
  ///
  /// fails  as JobDivision, client::JobGroup::join, JobCheckpoints and the replica
  Status begin();
  /// The job had ended before this rank came: there is nothing to train, and no group.
  bool is_over() const { return is_over_; }
  /// Train until the goal is reached or a rank wants to stop, and write the last checkpoint. `kept`
  /// says whether that failed.
  ///
  /// fails  as train_sharded; after a loss as client::JobGroup::regroup, parallel::regroup, and
  ///        JobCheckpoints::restore
  Status train(const ShardedObserver& observer);
  /// Whether the last checkpoint was written, if there is to be one.
  const Status& kept() const { return kept_; }
  /// With parts: add the place of a rank that was lost, and what to do.
  Status explain(const Status& result) const;

  const collective::Group& group() const { return ranks_->group(); }
  const JobDivision& division() const { return division_; }
  DividedReplica& replica() { return *replica_; }
  /// Of the replica; null: this rank waits.
  const parallel::ShardedParameters* parameters() const {
    return generations_.present().parameters.get();
  }
  /// Of the present replica; none if there is none after a failure.
  RankCosts costs() const { return replica_ ? replica_->costs() : RankCosts(); }
  const ShardedSummary& summary() const { return summary_; }

 private:
  Status begin_with_others();
  Status check_save() const;
  Status train_group(const ShardedObserver& observer);
  bool survives(const Error& error) const;
  std::string lost_rank() const;
  Result<bool> has_room_for_newcomers();
  Status regroup(client::Meeting::Newcomers newcomers);
  void tell_change(const client::Membership& before, const char* from, double seconds);
  Status show(const parallel::ShardedParameters* parameters);
  Status take_over(bool& is_from_memory);
  Status divide(std::uint32_t from);
  Status take_from_checkpoint();
  std::chrono::milliseconds patience() const;
  parallel::Held held(std::shared_ptr<parallel::ShardedParameters> parameters) const;
  void go_on();
  Status share_position(std::uint32_t from, std::uint64_t step, std::uint32_t data_world);
  Status restore();

  const WorkerConfig& config_;
  const Model& model_;
  const DataSplit& data_;
  ShardedMonitor& monitor_;
  JobDivision division_;
  ShardedTrainingOptions training_;
  ShardedSummary summary_;
  bool is_over_ = false;
  std::unique_ptr<client::JobGroup> ranks_;
  std::string run_;                              ///< of the last checkpoints
  std::unique_ptr<JobCheckpoints> checkpoints_;  ///< null: none are written
  Status kept_;
  bool stops_ = false;  ///< a rank wants it: also those that are left of a group do
  parallel::Generations generations_;
  std::unique_ptr<DividedReplica> replica_;  ///< of the present one; null: of a newcomer
};

}  // namespace centroid::worker
