#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/group.h"
#include "client/group_meeting.h"
#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/job_checkpoints.h"
#include "worker/model/model.h"
#include "worker/node/sharded_replica.h"
#include "worker/node/sharded_training.h"
#include "worker/sharded_monitor.h"

namespace centroid::worker {

/// The settings as the library takes them, of a group of `world` ranks.
Result<parallel::ShardedOptions> sharded_options(const WorkerConfig& config, std::uint32_t world);

/// Meet the other ranks, or the job that they have begun.
///
/// fails  as PeerGroup::join
Result<std::unique_ptr<client::PeerGroup>> join_ranks(const WorkerConfig& config,
                                                      bool may_be_newcomer = false);

/// Refuse ranks that do not have the same settings; all end with the name of one.
///
/// fails  invalid_argument; as parallel::exchange
Status check_same_settings(const collective::Group& group, const WorkerConfig& config,
                           const Model& model, const DataSplit& data);

/// Refuse a job that needs this memory. A snapshot is not counted: without memory for it,
/// checkpoints are written in place.
///
/// fails  failed_precondition: the memory is too small, with the numbers
Status check_limit(const WorkerConfig& config, const parallel::ShardedMemory& need);

/// Refuse before anything is allocated; else the planned memory.
///
/// fails  failed_precondition: the memory is too small, with the numbers
Result<parallel::ShardedMemory> check_sharded_memory(const WorkerConfig& config, const Model& model,
                                                     const DataSplit& data,
                                                     const parallel::ShardedOptions& options,
                                                     std::uint32_t world);

/// A job of exchange sharded on this rank, over all its groups. When ranks are lost, those that are
/// left meet, make a group of their own, and take over the lost shards from their copies; without
/// these from the newest checkpoint. A worker that comes later joins them between two steps, and
/// gets its shard from theirs.
///
/// order   every rank makes the same calls
class ShardedJob {
 public:
  ShardedJob(const WorkerConfig& config, const Model& model, const DataSplit& data,
             ShardedMonitor& monitor)
      : config_(config), model_(model), data_(data), monitor_(monitor) {}

  /// Join the other ranks, and restore the newest checkpoint or draw the initial values. Or join a
  /// job that they have begun.
  ///
  /// fails  as check_sharded_memory, PeerGroup::join, client::Meeting::join, JobCheckpoints and
  ///        ShardedReplica::make
  Status begin();
  /// Train until the goal is reached or a rank wants to stop, and write the last checkpoint.
  ///
  /// fails  as train_sharded; after a loss as client::Meeting::meet, parallel::regroup, and
  ///        JobCheckpoints::restore
  Status train(const ShardedObserver& observer);

  const collective::Group& group() const { return peers_->group(); }
  ShardedReplica& replica() { return *replica_; }
  /// Of the present replica; 0 if there is none after a failure.
  parallel::ShardedMemory most_memory() const {
    return replica_ ? replica_->most_memory() : parallel::ShardedMemory();
  }
  const ShardedSummary& summary() const { return summary_; }
  const parallel::ShardedOptions& options() const { return options_; }
  /// That each rank is expected to need.
  const parallel::ShardedMemory& planned() const { return planned_; }

 private:
  Status open_meeting();
  Status begin_with_others(const Status& opened);
  Status open_checkpoints(const std::string& run);
  Status train_group(const ShardedObserver& observer);
  bool survives(const Error& error) const;
  Result<bool> has_room_for_newcomers();
  Status enter(client::Membership next);
  void tell_change(const client::Membership& before, const char* from, double seconds);
  Status show(const parallel::ShardedParameters& parameters);
  Result<const char*> take_over();
  Result<parallel::ShardedMemory> plan(std::uint32_t world) const;
  parallel::ShardedParameters* earlier(std::uint64_t generation);
  Status share_position(std::uint32_t from);
  Status restore();

  const WorkerConfig& config_;
  const Model& model_;
  const DataSplit& data_;
  ShardedMonitor& monitor_;
  parallel::ShardedOptions options_;
  parallel::ShardedMemory planned_;
  ShardedTrainingOptions training_;
  ShardedSummary summary_;
  std::unique_ptr<client::PeerGroup> peers_;
  std::unique_ptr<client::Meeting> meeting_;
  client::Membership members_;                   ///< of the group
  std::string run_;                              ///< of the last checkpoints
  std::unique_ptr<JobCheckpoints> checkpoints_;  ///< null: none are written
  std::unique_ptr<ShardedReplica> replica_;      ///< null: of a newcomer
  std::uint32_t replica_world_ = 0;              ///< ranks of the group of `replica_`
  std::uint64_t replica_generation_ = 0;         ///< of that group; 0: null
  /// Those of a later group, while another rank may lack its own.
  std::unique_ptr<parallel::ShardedParameters> made_;
  std::uint64_t made_generation_ = 0;
  /// The last group of which all ranks had their part, and this one still has its own; 0: none.
  std::uint64_t complete_generation_ = 0;
};

}  // namespace centroid::worker
