#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/job_group.h"
#include "common/tensor/tensor.h"
#include "worker/parallel/generations.h"
#include "worker/parallel/sharded_checkpoint.h"
#include "worker/parallel/sharded_settings.h"

namespace centroid::client {

struct ShardedModelOptions {
  JobGroupOptions group;              ///< `settings` is made
  Manifest tensors;                   ///< float32, no buffers
  std::vector<std::uint32_t> layers;  ///< by tensor, ascending
  parallel::ShardedSettings division;
  std::string checkpoints;  ///< folder, the same one for every rank; empty: none
  std::uint64_t keep = 3;   ///< newest checkpoints; 0: all
};

/// A program's own model, of which each rank of a job has a shard. Ranks may be lost, and come.
///
/// use      as ShardedParameters, by layers in place of units
/// failure  after one of another rank every operation fails until `regroup`
/// order    every rank makes the same calls
/// waits    for other ranks as long as the group's timeout; where these may use their disks
///          (`open`, `regroup`, `save`, `finish_save` with a folder) at least 10 minutes
/// thread   one at a time
class ShardedModel {
 public:
  using Initial = parallel::ShardedParameters::Initial;
  /// Meet the others, and go on from the newest checkpoint if there is one. Else rank 0 gives the
  /// values. A job that has begun takes this process at its next `regroup`.
  ///
  /// fails  as JobGroup::join, ShardedCheckpoints::restore and ShardedParameters::make
  static Result<std::unique_ptr<ShardedModel>> open(ShardedModelOptions options,
                                                    const Initial& initial);
  /// Waits for the checkpoint in progress. Its failure is logged, as by `regroup`.
  ~ShardedModel();

  Status prefetch(std::uint32_t layer);
  Status gather(std::uint32_t layer);
  Status release(std::uint32_t layer);
  Status reduce(std::uint32_t layer);
  Result<std::span<const float>> parameter(std::size_t tensor) const;
  Result<std::span<float>> gradient(std::size_t tensor);
  /// `position`: in the program's data, after this step; the same on all ranks.
  Result<parallel::StepReport> step(std::uint64_t position);
  /// Add up the numbers of all ranks.
  Status sum(std::span<double> numbers);

  /// Go on without the ranks that were lost, and with those that wait; nothing to do without any.
  /// `parameters().steps()` and `position` say where: after the last step that any rank made, or
  /// after a newest checkpoint where a shard is lost. After a failure there may be no parameters:
  /// then only `check_ready` and `regroup` may be called.
  ///
  /// fails  unavailable: a shard is lost, and there is no checkpoint; as JobGroup::regroup
  Status regroup();
  /// fails  failed_precondition: the last `regroup` failed, and there are no parameters
  Status check_ready() const;
  /// Write a checkpoint, in the background. Waits for an earlier one, and returns its failure;
  /// then nothing begins.
  ///
  /// fails  failed_precondition: no folder, the disk's error; as ShardedCheckpoints::begin
  Status save();
  /// Return when the last checkpoint is on the disk.
  Status finish_save();
  /// The training is complete: those that come learn that, and do not begin it again. Finishes the
  /// checkpoint in progress.
  Status end();

  const collective::Group& group() const { return ranks_->group(); }
  const parallel::ShardedParameters& parameters() const {
    return *generations_.present().parameters;
  }
  std::uint64_t position() const { return position_; }

 private:
  explicit ShardedModel(ShardedModelOptions options);
  Status begin(const Initial& initial);
  Result<parallel::ShardedOptions> division() const;
  Status open_checkpoints();
  void end_checkpoints();
  Status restore();
  Status take_over();
  Status share_position(std::uint32_t from, std::uint64_t step);
  Status change_group(Meeting::Newcomers newcomers);
  parallel::ShardedParameters& own() { return *generations_.present().parameters; }
  void prepare(std::unique_ptr<parallel::ShardedParameters> parameters);
  std::chrono::milliseconds patience() const;
  void go_on();
  Result<std::size_t> unit_of(std::uint32_t layer) const;
  bool is_in(const std::set<std::uint32_t>& layers, std::size_t unit, bool all) const;
  Status noted(Status status);
  Status told_apart(Status of_disk) const;

  const ShardedModelOptions options_;
  std::vector<parallel::ParameterShape> shapes_;
  std::unique_ptr<JobGroup> ranks_;
  std::uint32_t wanted_ = 0;                                   ///< ranks
  std::string run_;                                            ///< of checkpoints
  std::unique_ptr<parallel::ShardedCheckpoints> checkpoints_;  ///< null: none are written
  parallel::Generations generations_;
  std::set<std::uint32_t> gathered_, reduced_;      ///< layers, of units with several
  std::uint64_t position_ = 0, next_position_ = 0;  ///< of the last step; of the one that runs
  std::uint64_t done_ = 0;                          ///< the step that `position_` follows
  std::optional<Error> lost_;                       ///< another rank's failure, or of `regroup`
};

}  // namespace centroid::client
