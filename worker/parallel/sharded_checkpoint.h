#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint.h"
#include "transport/collective/group.h"
#include "worker/parallel/element_map.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::parallel {

/// The part of a model that a rank and some others divide: a stage of a pipeline, of a tensor
/// parallel rank its part of that.
struct CheckpointStage {
  collective::Group ranks;  ///< which divide its parameters
  Range parameters;         ///< of the model
  std::uint32_t index = 0, count = 1;
  /// The model's tensors on each tensor parallel rank, of which this is `part`; empty: whole ones.
  std::vector<Manifest> parts{};
  std::uint32_t part = 0;
};

struct ShardedCheckpointOptions {
  std::filesystem::path folder;  ///< of checkpoints: the same one for every rank
  std::size_t keep = 3;          ///< number of newest ones to retain; 0: all
  /// For what ranks wait for each other: the slowest one's disk.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  /// The program's own check of a checkpoint to restore, on every rank; an error refuses it.
  std::function<Status(const CheckpointInfo&)> check{};
  /// Nothing: every rank's parameters are those of the model. Stages have as many ranks each, and
  /// together all parameters, in order.
  std::optional<CheckpointStage> stage{};
};

/// The state from which a restored job continues.
struct RestoredShards {
  std::unique_ptr<ShardedParameters> parameters;
  CheckpointInfo info;
  std::filesystem::path path;
};

/// Checkpoints of a model that ranks have in shards. Every rank writes its part and reads what it
/// needs, for any number of ranks, any sharding, any stages and parts, whatever wrote them.
///
/// files    a checkpoint of common/checkpoint (pieces.h has the parts' format), so other programs
///          list, verify and export it. A single process can read it, and its own are read here
/// commit   rank 0 writes manifest.json when all parts are on the disk, and then gives the folder
///          its name. A job that dies before leaves the older checkpoints as they are
/// memory   `write` none, `begin` a copy of this rank's shard with its state until the write ends,
///          `restore` the shard
/// ranks    every rank makes the same calls in the same order. A failure of one is that of all, and
///          names the rank
/// fails    a disk's errors leave all as it was: later calls may succeed. If a rank is lost, all
///          later calls fail too; the job's own operations do not
/// thread   one at a time
class ShardedCheckpoints {
 public:
  /// `model`: names and shapes of the parameters, in their order. Removes what a crash left.
  ///
  /// fails  invalid_argument: a tensor that is not f32, or has the name of another one's piece;
  ///        failed_precondition: the folder of some rank is another one
  static Result<std::unique_ptr<ShardedCheckpoints>> open(const collective::Group& group,
                                                          Manifest model,
                                                          const ShardedCheckpointOptions& options);
  ~ShardedCheckpoints();  ///< waits for the write in progress

  /// Write a checkpoint between two steps. `info` has the run, the version (from 1 on), and the
  /// position in the data; optimizer and step are added.
  ///
  /// fails  already_exists: a sound one of that version; resource_exhausted: full disk;
  ///        invalid_argument: the parameters are not those of the model; data_loss: a number is
  ///        not finite
  Status write(const ShardedParameters& parameters, const CheckpointInfo& info);
  /// Copy this rank's shard, and write it during the training. Waits for an earlier write.
  ///
  /// fails  as the earlier write; then nothing begins
  Status begin(const ShardedParameters& parameters, const CheckpointInfo& info);
  /// Return when the write that `begin` began has ended, with its failure.
  Status wait();
  /// End what waits for other ranks: one of them was lost, or is silent.
  void abort(const Error& why) { own_.abort(why); }

  /// Make the parameters, those of the stage, with values and state of the newest sound checkpoint,
  /// or that of a version. Each rank verifies some of the files; older ones follow damaged ones.
  ///
  /// fails  before memory is taken. not_found: there is none; data_loss: all are damaged;
  ///        unavailable: the newest is unreadable, or of a later format; failed_precondition: made
  ///        with another model or optimizer; as options.check and ShardedParameters::make
  Result<RestoredShards> restore(std::vector<ParameterShape> parameters,
                                 const ShardedOptions& options,
                                 std::optional<Version> version = std::nullopt);

 private:
  struct Image;  ///< what one rank writes
  ShardedCheckpoints(collective::Group group, collective::Group own, Manifest model,
                     ShardedCheckpointOptions options);
  Range own_parameters() const;
  std::span<const TensorInfo> own_tensors() const;
  Result<Image> image_of(const ShardedParameters& parameters, const CheckpointInfo& info) const;
  Status write_image(const Image& image);
  Status write_as_first(const Image& image);
  Status write_own(const Image& image, const std::filesystem::path& folder,
                   CheckpointManifest& content);
  Status commit(const Image& image, const std::filesystem::path& folder,
                CheckpointManifest& content) const;
  Status check_model(std::span<const ParameterShape> parameters) const;
  Result<std::filesystem::path> choose(std::vector<CheckpointEntry>& candidates,
                                       const std::optional<Version>& version, const Status& so_far);
  Status examine(const CheckpointManifest& content, const std::filesystem::path& folder,
                 const Optimizer& optimizer) const;

  const collective::Group group_;  ///< for the parameters of `restore`
  const collective::Group own_;    ///< for agreement
  const Manifest model_;
  const ShardedCheckpointOptions options_;
  const ElementMap map_;                          ///< of this rank's parameters
  std::optional<CheckpointDirectory> directory_;  ///< on rank 0
  Thread writer_;
  Status written_;  ///< of the writer, once it has ended
};

}  // namespace centroid::parallel
