#pragma once

#include <memory>

#include "common/async/task.h"
#include "server/service/job_part.h"

namespace centroid::server {

/// What a round does with the leader's shard of the model beside the sums: it measures and clips
/// the mean, and follows the workers' step. Of one thread; long work gives others a turn.
class LocalShard : private JobPart {
 public:
  explicit LocalShard(JobContext& context) : JobPart(context) {}

  /// Squares of the mean, by chunk. `total_weight`: the sums are made means first; 0: they are.
  Task<void> measure(double total_weight);
  /// The same of results, as workers decode them.
  Task<Status> measure(std::shared_ptr<const Attempt> results);
  /// Clip what was measured. Returns the factor.
  float clip_measured();
  /// Measure and clip the mean, or results as workers decode them. Returns the factor.
  Task<Result<float>> clip(std::shared_ptr<const Attempt> results);

  /// Note in OpenRound::overflow a chunk whose sum, or what the step made of it, is not finite.
  /// While it is in the cache.
  void look_at_sum(const Chunk& chunk) const;
  void look_at_result(const Chunk& chunk) const;

  /// Whether the step may make numbers that are not finite.
  bool may_overflow() const;
  /// Note in OpenRound::overflow a chunk of which it does, before it is made. `results` as below.
  /// `total_weight` above 0: of sums, which become means
  Task<Status> try_step(std::shared_ptr<const Attempt> results, double total_weight = 0);
  /// Make the workers' step with their mean, and commit it. `results`: of a codec, else unused
  Task<Status> follow(std::shared_ptr<const Attempt> results);

  // results through a codec
  void begin_results(Generation generation);
  /// A generation has begun without what the codec left out before, and no round of it counts yet.
  bool is_residual_cleared() const;
  /// For the metrics, after a round.
  void count_results();
};

}  // namespace centroid::server
