#pragma once

#include <cstdint>
#include <map>

#include "common/async/until.h"
#include "common/proto/servers.h"
#include "server/shard/shard_context.h"

namespace centroid::server {

/// Which workers may send contributions, and to which attempts of rounds, as the leader has said
/// last (Opened). A worker's messages may arrive before the leader's: they wait here.
///
/// thread  one executor
class ContributionFence {
 public:
  explicit ContributionFence(const ShardContext& context)
      : context_(context), changed_(context.executor) {}

  void set(proto::Opened opened);
  /// The session with the leader has ended.
  void reset();
  /// The worker is gone.
  void remove(MemberId member);

  /// The member has this name.
  bool is_member(const proto::Enter& enter) const;
  /// As the leader's: what is older than the newest attempt was under way when its own closed.
  bool is_opened(const proto::ContributionKey& key) const;
  /// Refuse at once a worker that was a member and is none; wait for the leader's message about one
  /// that it has not named yet.
  /// fails  aborted
  Task<Status> await_member(const proto::Enter& enter);
  /// fails  aborted: the leader has not told of it, or the worker is fenced: it is to join again
  Task<Status> await_opened(const proto::Enter& enter, proto::ContributionKey key);

 private:
  const ShardContext& context_;
  Event changed_;
  proto::Opened opened_;
  std::map<MemberId, std::uint32_t> members_;  ///< crc32c of the name, by member
  MemberId newest_member_;  ///< of all that the leader has named: ids are never used again
};

}  // namespace centroid::server
