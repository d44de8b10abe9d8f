#pragma once

#include <memory>
#include <string>

#include "common/checkpoint/journal_parts.h"
#include "common/proto/servers.h"
#include "server/shard/shard_chunks.h"
#include "server/shard/shard_context.h"
#include "server/store/disk_watch.h"
#include "server/store/journal.h"

namespace centroid::server {

/// The journal of a shard server: what it has prepared of each round. The leader's journal decides
/// which of it counts.
///
/// recall  what the folder had when the session with the leader began: rounds that the leader has
///         committed and that are to be applied again
/// thread  one executor
class ShardJournal {
 public:
  ShardJournal(ShardContext& context, const ShardChunks& chunks);

  /// What rounds write to; does nothing before `start`.
  Journal& writer() { return writer_; }
  const Journal& writer() const { return writer_; }

  /// Read what is in the folder, once a session.
  /// fails  failed_precondition: it is another run's
  Task<Status> check_owner();
  /// Begin with this state. What the leader has not committed of the folder is gone then.
  Task<Status> start(proto::ServerState state);
  /// Close it: the memory of the store is not read any more.
  Task<void> stop() { return writer_.stop(context_.files); }
  /// The session with the leader has ended.
  Task<void> forget();
  Task<Result<journal::Parts::Numbers>> recall(proto::Recall wanted);
  /// There is a checkpoint with that many rounds: what is older is not asked for any more.
  Task<void> checkpointed(Round round);

  /// The state after that round.
  journal::Base base(Round over) const;
  void add_to(proto::ServerReport& report) const;

 private:
  std::string terms() const { return "server=" + context_.options.name; }

  ShardContext& context_;
  const ShardChunks& chunks_;
  Journal writer_;
  DiskWatch disk_;
  std::shared_ptr<const journal::Parts>
      recalled_;  ///< what the folder had when the leader asked first
};

}  // namespace centroid::server
