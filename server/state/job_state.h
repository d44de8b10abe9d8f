#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/checkpoint/checkpoint.h"
#include "common/proto/messages.h"
#include "common/tensor/buffer.h"
#include "server/aggregate/aggregator.h"
#include "server/api/view.h"
#include "server/coordinate/epoch_tallies.h"
#include "server/coordinate/returned_shares.h"
#include "server/shard/model_shard.h"
#include "server/state/counted_rounds.h"
#include "server/state/curves.h"

namespace centroid::server {

/// How far a job is.
struct JobPosition {
  Round round{1};
  std::uint64_t epoch = 0, offset = 0;  ///< where in the data the round begins
  std::uint64_t optimizer_step = 0;
  std::uint64_t steps_before = 0;  ///< local steps in the rounds that are over
  ReturnedShares returned;         ///< samples of lost workers that are still to be trained
};

/// The last test result of the workers.
struct Evaluation {
  Version version;
  double accuracy = -1, loss = -1;  ///< -1: none
};

/// Where the job stands: all that is true of one version only. It moves on round by round. When the
/// job goes to another version it is replaced as a whole (`replace`), never field by field.
///
/// factories  `JobState()`: the beginning, without a model. The server makes others from a
///            checkpoint and from a file of initial values. `back_to_stored` goes back to the
///            values that the store still holds.
/// thread     the service's
struct JobState {
  JobState() = default;
  JobState(JobState&&) = default;
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

  /// Which run; empty: not known yet.
  std::string run_id;
  /// What the first worker said of the model, the data and the codec; all others say the same.
  std::optional<proto::Join> agreed;

  std::unique_ptr<ModelShard> shard;  ///< the leader's part; none: no model is known yet
  std::unique_ptr<BufferPool> pool;
  std::unique_ptr<Aggregator> aggregator;  ///< holds buffers of the pool
  // results through a codec
  Generation replies_generation, replies_committed;  ///< of the open, of the last committed round
  std::optional<Error> reply_failure;
  ReplyEncoder::Totals replies_counted;  ///< by the metrics

  Round round{1};  ///< the open one, or the next
  std::uint64_t epoch = 0, offset = 0, steps_before = 0;
  ReturnedShares returned;
  JobPosition held;            ///< of the values in the store, which may be behind the version
  std::uint32_t attempts = 0;  ///< at the open round so far
  CountedRounds counted;
  bool evaluate_next = false;  ///< the next round evaluates the parameters

  Evaluation evaluation;
  EpochTallies epochs;
  std::deque<RoundView> history;  ///< newest first
  Curves curves;

  // how many workers are waited for before a round
  std::uint64_t trained_rounds = 0;       ///< by this process, of this state
  bool was_restored = false;              ///< while the process ran
  std::optional<TimePoint> gather_until;  ///< `min_workers` are waited for until then

  std::optional<CheckpointEntry> resumed_from;
  Generation least_generation;  ///< of the members, so that none comes twice
  Version checkpointed;
  bool is_checkpoint_lost = false;  ///< that one has been found damaged since
  std::optional<CheckpointView> last_written;
  std::optional<Version> announced;  ///< the workers know that this one is to be saved
  std::shared_ptr<const ParametersView> measured;
  TimePoint measured_at;

  ParameterStore& store() const { return shard->store(); }  ///< while there is a model
  Version version() const { return shard ? store().version() : Version(); }
  JobPosition position() const;

  /// Replace the state by `next`. Ended epochs, curves and the test result of a version up to that
  /// of `next` remain. The open round must be over, and nothing may read the store.
  void replace(JobState next);
  /// Free the model's memory, before another state is made: nobody may need it.
  void drop_model();
  /// Workers may have gone with what was lost: wait for them anew, but not for ever.
  void gather_again();
  /// The beginning of the same model and data, in the same store, where this holds no values.
  /// Otherwise the state whose values the store holds.
  JobState back_to_stored() &&;

 private:
  JobState& operator=(JobState&&) = default;
};

}  // namespace centroid::server
