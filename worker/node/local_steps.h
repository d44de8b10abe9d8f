#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"
#include "worker/data/data_source.h"
#include "worker/loop/local_keeper.h"
#include "worker/loop/rounds.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {

/// Local steps of a built-in model (docs/how-to/diloco.md): the worker's own optimizer trains the
/// parameters that `Rounds` averages.
///
/// steps    a share of n samples is ceil(n / batch) steps of near-equal size
/// GPU      own parameters and slots stay on the GPU between steps (ReplicaGroup::resident).
///          Parameters are copied to the host before a contribution and at the end of a round,
///          slots when they are written to disk
/// memory   the optimizer's slots, and LocalPlanes
/// thread   the loop's; `begin` while the loop waits in Rounds::next
class LocalSteps {
 public:
  struct Options {
    OptimizerConfig optimizer;  ///< the worker's own
    std::uint64_t batch = 1;    ///< samples of a step
    std::string worker;         ///< its name
    std::string state_dir;      ///< see LocalKeeper; "": nothing is stored
    /// The schedule counts the local steps of the whole cluster, not only this worker's.
    bool schedules_by_cluster = false;
    bool on_gpu = true;      ///< the optimizer runs on the gradient's GPU, if possible
    double scale_ratio = 0;  ///< the learning rate is multiplied by 1 + (world - 1) ratio
  };
  /// `group` and `rounds` outlive it.
  /// fails  as make_optimizer
  static Result<std::unique_ptr<LocalSteps>> make(ReplicaGroup& group, Rounds& rounds,
                                                  Options options);

  /// For ExchangeMemory.
  Result<std::span<const float>> begin(const LocalTerms& terms, const ChunkPlan& plan);
  void use_params(std::span<float> params);
  Status keep(Round round) { return keeper_ ? keeper_->keep(round, source()) : Status(); }

  /// The replicas read the cluster's parameters, until the next round.
  void rest();
  /// One round on the share that Rounds::next returned. `stats`: of this share.
  Result<RoundReport> round(const Share& share, const Dataset& data, StepStats& stats);
  /// The job ends on this worker: store what the next start needs.
  void leave();

  std::uint64_t steps() const { return steps_; }  ///< made by the inner optimizer

 private:
  LocalSteps(ReplicaGroup& group, Rounds& rounds, Options options,
             std::unique_ptr<Optimizer> optimizer, LearningRateSchedule schedule)
      : group_(group),
        rounds_(rounds),
        options_(std::move(options)),
        optimizer_(std::move(optimizer)),
        schedule_(schedule) {}
  Status take_up(const Share& share);
  Status train(const Dataset& data, std::span<const std::uint64_t> samples, Range steps,
               std::uint64_t of, StepStats& stats);
  void set_rate();
  Status forget_nonfinite();
  Result<GroupStep> advance(const Dataset& data,
                            std::span<const std::span<const std::uint64_t>> batches);
  Result<GroupStep> step(const Dataset& data, std::span<const std::uint64_t> batch);
  Status fetch_slots();
  LocalKeeper::State state();
  LocalKeeper::Source source();

  ReplicaGroup& group_;
  Rounds& rounds_;
  Options options_;
  std::unique_ptr<Optimizer> optimizer_;
  LearningRateSchedule schedule_;          // of the cluster's steps; else the optimizer's is used
  ResidentTraining* resident_ = nullptr;   // if own parameters and slots are on GPUs
  std::vector<std::vector<float>> slots_;  // of resident_: host copies, updated on demand
  std::uint64_t steps_ = 0;
  std::uint64_t cluster_steps_ = 0;  // of all workers before this round, plus own ones in it
  std::uint32_t world_ = 1;
  double parameter_norm_ = -1;  // own, sent with the next contribution
  double gradient_norm_ = -1;   // of the last step, if it was clipped
  bool is_resting_ = true;      // the replicas read the cluster's parameters
  std::unique_ptr<LocalKeeper> keeper_;
};

}  // namespace centroid::worker
