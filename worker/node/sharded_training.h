#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
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
  std::string end;          ///< why the training ended
  bool is_halted = false;   ///< the loss was not finite
  bool is_stopped = false;  ///< a rank wanted it (ShardedObserver::is_stopping)
  bool is_paused = false;   ///< newcomers wait (ShardedObserver::has_newcomers)
};

/// What this rank measured of a step.
struct StepTimes {
  std::uint64_t samples = 0;
  double seconds = 0;   ///< with those below
  double waiting = 0;   ///< as RankCosts::waiting
  double agreeing = 0;  ///< until the loss of all ranks was known
};

/// What a rank shows to all, sent as it is: sums since it began to train, and the most memory.
struct RankNumbers {
  double steps = 0, samples = 0, seconds = 0, computing = 0;
  std::array<double, kOperations> waited{};    ///< seconds
  std::array<double, kOperations> received{};  ///< bytes of numbers
  double in = 0, out = 0;                      ///< bytes of connections
  double parameters = 0, gradients = 0, state = 0, activations = 0, process = 0;  ///< bytes
  double bubble = 0;  ///< part of the time in which a stage waited for others
};

struct ShardedObserver {
  std::function<void(const ShardedSummary&, const StepTimes&)> stepped{};  ///< after each step
  /// Whether this rank wants to stop, asked in each step. All ranks stop after it.
  std::function<bool()> is_stopping{};
  /// Whether others wait for this rank to let them join, asked in each step. All pause after it.
  std::function<bool()> has_newcomers{};
  /// Whether this rank wants the numbers of all, asked in each step. All exchange them after it.
  std::function<bool()> wants_numbers{};
  std::function<RankNumbers()> numbers{};                           ///< of this rank
  std::function<void(std::span<const RankNumbers>)> has_numbers{};  ///< of all, by rank
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
