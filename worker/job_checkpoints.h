#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/config.h"
#include "worker/data/data_source.h"
#include "worker/model/model.h"
#include "worker/node/sharded_training.h"
#include "worker/parallel/sharded_checkpoint.h"

namespace centroid::worker {

/// The checkpoints of a job of exchange sharded: when they are written, and what is in them.
///
/// order   every rank of the group makes the same calls
/// fails   a checkpoint that cannot be written is logged, and training goes on. `finish` returns
///         the failure of the last one
class JobCheckpoints {
 public:
  /// Opens config.checkpoint.dir. `run`: id of the job to continue; empty: a new job. `stage`: this
  /// rank's, with parts.
  ///
  /// fails  failed_precondition: checkpoints of another job are there and there is no `resume`; as
  ///        ShardedCheckpoints::open
  static Result<std::unique_ptr<JobCheckpoints>> open(
      const WorkerConfig& config, const Model& model, const DataSplit& data,
      const collective::Group& group, const std::string& run = {},
      const std::optional<parallel::CheckpointStage>& stage = std::nullopt);
  const std::string& run() const { return run_id_; }
  /// Whether the job of config.resume has reached its goal, as its newest checkpoint says.
  static bool show_the_goal(const WorkerConfig& config, const Model& model);

  /// Whether to `restore`. Logs that there is none if config.resume wants one.
  bool resumes() const;
  /// These parameters of the newest sound one, and its position in `summary`.
  ///
  /// fails  before memory is taken. failed_precondition: it was made with another seed or other
  ///        data; as ShardedCheckpoints::restore
  Result<std::unique_ptr<parallel::ShardedParameters>> restore(
      std::vector<parallel::ParameterShape> parameters, const parallel::ShardedOptions& options,
      ShardedSummary& summary);

  /// Write one if it is due after this step. The write runs in the background, from a copy of the
  /// shard. If a rank has no memory for a copy beside what is planned, it ends before this returns.
  void stepped(const parallel::ShardedParameters& parameters, const ShardedSummary& summary,
               const parallel::ShardedMemory& planned);
  /// A rank was lost, or is silent: the write in progress does not wait for it.
  void abort(const Error& why) { checkpoints_->abort(why); }
  /// Write the last one, unless it is there, and wait for it.
  ///
  /// fails  as ShardedCheckpoints::write
  Status finish(const parallel::ShardedParameters& parameters, const ShardedSummary& summary);

 private:
  JobCheckpoints(const WorkerConfig& config, const Model& model, std::uint64_t train_samples,
                 const collective::Group& group)
      : config_(config), model_(model), train_samples_(train_samples), group_(group) {}
  bool has_room(const parallel::ShardedMemory& planned) const;
  Status write_due(const parallel::ShardedParameters& parameters, const ShardedSummary& summary,
                   const parallel::ShardedMemory& planned);
  Status check_position(const CheckpointInfo& info) const;
  CheckpointInfo info_of(const ShardedSummary& summary) const;

  const WorkerConfig& config_;
  const Model& model_;
  const std::uint64_t train_samples_;
  const collective::Group group_;
  std::string run_id_;
  bool is_empty_ = true;
  std::unique_ptr<parallel::ShardedCheckpoints> checkpoints_;
  std::uint64_t last_ = 0;  ///< step of the newest that is there or being written
};

}  // namespace centroid::worker
