#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/service/job_part.h"
#include "server/service/local_shard.h"
#include "server/shard/shard_group.h"

namespace centroid::server {

/// A round of a model on several servers, as its leader makes it with the others: they sum, step
/// and commit what lies on them. Does nothing where all chunks are here. Of one thread.
class RoundServers : private JobPart {
 public:
  RoundServers(JobContext& context, ShardGroup& shards, const LocalShard& local)
      : JobPart(context), shards_(shards), local_(local) {}

  void tell_opened();
  /// A member is gone, of whom other servers may keep something that counts.
  void departed(MemberId member) { departed_.push_back(member); }
  void forget_departed();

  /// Other servers may have summed a part of what this member contributes to the open attempt.
  bool may_have_part(MemberId member) const;
  std::string names_of_missing_holders(const WorkerSession& worker) const;
  bool is_short(const proto::PushEnd& end) const;
  Result<bool> is_whole_elsewhere(const WorkerSession& worker, const proto::PushEnd& end) const;
  Status check_norm(const WorkerSession& worker, const proto::PushEnd& end,
                    double squares_here) const;
  double weight_elsewhere(const proto::ContributionKey& key) const;
  double squares_elsewhere(const proto::ContributionKey& key) const;

  /// The first phase, into `done`.
  Task<void> prepare_elsewhere(std::shared_ptr<const RoundDecision> decision, Status* done);
  /// Its second half, where that waited for the norm.
  Task<void> prepare_elsewhere(float factor, Status* done);
  Task<Status> step_elsewhere(float factor);
  Task<void> end_elsewhere();
  Task<void> thaw_servers(Round written);

 private:
  Task<Status> merge_elsewhere(std::shared_ptr<const RoundDecision> decision);
  void note_overflow(const proto::MergeReply& reply) const;
  bool is_summed(std::uint32_t rank) const;

  ShardGroup& shards_;
  const LocalShard& local_;
  std::vector<MemberId> departed_;
};

}  // namespace centroid::server
