#pragma once

#include <string>

#include "server/service/data_shares.h"
#include "server/service/job_part.h"
#include "server/service/local_shard.h"

namespace centroid::server {

/// What the journal gets of each round. A round is in it before anybody hears that it is committed;
/// its numbers go there chunk by chunk while it is open. Of one thread.
class RoundJournal : private JobPart {
 public:
  RoundJournal(JobContext& context, const DataShares& data, const LocalShard& local)
      : JobPart(context), data_(data), local_(local) {}

  journal::Base base() const;
  std::string terms() const;
  void write_chunk(const Chunk& chunk);
  /// The number to give to `written`.
  std::uint64_t end_round(journal::Kind kind, const RoundDecision& decision);
  /// Wait until the journal has it; then workers may hear of the round. fails as may_commit
  Task<Status> written(std::uint64_t number);
  Task<Status> commit(const RoundDecision& decision);
  Waits::Guard begin_wait();

 private:
  const DataShares& data_;
  const LocalShard& local_;
};

}  // namespace centroid::server
