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

/// The journal of a shard server: the rounds that it has prepared. The leader's journal decides
/// which of them count.
///
/// recall  content of the folder at the start of the session with the leader: rounds that the
///         leader has committed and may request again
/// thread  one executor
class ShardJournal {
 public:
  ShardJournal(ShardContext& context, const ShardChunks& chunks);

  /// The writer for rounds; does nothing before `start`.
  Journal& writer() { return writer_; }
  const Journal& writer() const { return writer_; }

  /// Read the folder, once per session.
  /// fails  failed_precondition: it belongs to another run
  Task<Status> check_owner();
  /// Begin with this state. Drops rounds that the leader has not committed.
  Task<Status> start(proto::ServerState state);
  /// Close the journal. Afterwards it does not read the store's memory.
  Task<void> stop() { return writer_.stop(context_.files); }
  /// The session with the leader has ended.
  Task<void> forget();
  Task<Result<journal::Parts::Numbers>> recall(proto::Recall wanted);
  /// A checkpoint contains rounds up to `round`: they will not be recalled.
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
      recalled_;  ///< content of the folder at the leader's first request
};

}  // namespace centroid::server
