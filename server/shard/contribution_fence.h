#pragma once

#include <cstdint>
#include <map>

#include "common/async/until.h"
#include "common/proto/servers.h"
#include "server/shard/shard_context.h"

namespace centroid::server {

/// Decides which workers may send contributions to which attempts of rounds, from the leader's last
/// Opened. A worker's message may arrive before the leader's: then it waits.
///
/// thread  one executor
class ContributionFence {
 public:
  explicit ContributionFence(const ShardContext& context)
      : context_(context), changed_(context.executor) {}

  void set(proto::Opened opened);
  /// The session with the leader has ended.
  void reset();
  /// The worker left the cluster.
  void remove(MemberId member);

  /// The member has this name.
  bool is_member(const proto::Enter& enter) const;
  /// As on the leader: a key older than the newest attempt is valid, because the contribution was
  /// in flight when its attempt closed.
  bool is_opened(const proto::ContributionKey& key) const;
  /// Refuse at once a worker that is no longer a member; wait for the leader's message about a new
  /// one.
  /// fails  aborted
  Task<Status> await_member(const proto::Enter& enter);
  /// fails  aborted: the leader has not opened the attempt, or the worker is fenced and must join
  ///        again
  Task<Status> await_opened(const proto::Enter& enter, proto::ContributionKey key);

 private:
  const ShardContext& context_;
  Event changed_;
  proto::Opened opened_;
  std::map<MemberId, std::uint32_t> members_;  ///< crc32c of the name, by member
  MemberId newest_member_;  ///< of all that the leader has named: ids are never reused
};

}  // namespace centroid::server
