#pragma once

#include <vector>

#include "common/async/task.h"
#include "server/service/job_part.h"

namespace centroid::server {

/// The chunks of the model that lie in this process: the norm of their mean, the step, and results
/// through a codec. Of one thread; long work gives others a turn.
class LocalShard : private JobPart {
 public:
  explicit LocalShard(JobContext& context) : JobPart(context) {}

  /// Whose turn it is, until the round is committed.
  const FragmentPlan::Fragment& fragment() const;
  bool has_turn(const Chunk& chunk) const;
  bool is_mine(ChunkId chunk) const;
  /// Chunks of the present fragment that lie here.
  const std::vector<Chunk>& part() const;

  /// Squares of the mean, by chunk. `total_weight`: the sums are made means first; 0: they are.
  Task<void> measure_mean(double total_weight);
  float clip_measured();
  Task<void> clip(double total_weight);

  // results through a codec
  void begin_replies();
  /// A generation has begun without what the codec left out before, and no round of it counts yet.
  bool is_residual_cleared() const;
  Status apply_reply(const Attempt::Piece& piece);
  Task<Status> measure_replies();
  void commit_replies();

 private:
  float clip_to(double norm);
};

}  // namespace centroid::server
