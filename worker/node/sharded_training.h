#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "transport/collective/group.h"
#include "worker/data/data_source.h"
#include "worker/node/divided_replica.h"

namespace centroid::worker {

struct ShardedTrainingOptions {
  std::uint64_t batch = 32;             ///< samples of a rank in a step
  std::uint64_t seed = 1;               ///< of the order of the samples
  std::uint64_t epochs = 0, steps = 0;  ///< goals; 0: none
};

/// The same on every rank.
struct ShardedSummary {
  std::uint64_t steps = 0, epochs = 0, samples = 0;
  std::uint64_t offset = 0;                   ///< of the next sample in the epoch
  double loss = 0, accuracy = 0;              ///< of the last step
  double gradient_norm = -1;                  ///< of the last step; -1: without clip_norm
  double test_loss = -1, test_accuracy = -1;  ///< of the last evaluation; -1: none
  double seconds = 0;
  std::string end;         ///< why the training ended
  bool is_halted = false;  ///< the loss was not finite
  bool is_paused = false;  ///< newcomers wait (ShardedObserver::has_newcomers)
};

struct ShardedObserver {
  std::function<void(const ShardedSummary&)> stepped{};  ///< after each step
  /// Whether this rank wants to stop, asked in each step. All ranks stop after it.
  std::function<bool()> is_stopping{};
  /// Whether others wait for this rank to let them join, asked in each step. All pause after it.
  std::function<bool()> has_newcomers{};
};

/// The samples of the next step of `world` data parallel ranks.
std::uint64_t next_samples(const ShardedSummary& summary, const ShardedTrainingOptions& options,
                           std::uint64_t train_samples, std::uint32_t world);
/// Count a step with these samples.
void count_step(ShardedSummary& summary, std::uint64_t samples, std::uint64_t train_samples);

/// Train from the summary's position until a goal is reached, or newcomers wait. The samples of a
/// step are those of one worker with exchange local and the batch of all ranks together; the
/// held-out data is evaluated after each epoch.
///
/// order  every rank of the group calls it, with the same data and options
/// fails  failed_precondition: the loss is not finite, on all ranks; as the replica. The summary
///        is valid also then
Status train_sharded(DividedReplica& replica, const collective::Group& group, const DataSplit& data,
                     const ShardedTrainingOptions& options, ShardedSummary& summary,
                     const ShardedObserver& observer = {});

}  // namespace centroid::worker
