#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/proto/servers.h"
#include "server/shard/round_sums.h"
#include "server/shard/shard_chunks.h"
#include "server/shard/shard_context.h"
#include "server/shard/shard_journal.h"
#include "server/shard/shard_memory.h"
#include "server/shard/shard_round.h"
#include "server/shard/staged_contributions.h"
#include "server/store/statistics.h"

namespace centroid::server {

/// The chunks of a model on a shard server, and what its leader asks of them: load, sum, step,
/// commit, read and freeze, with their journal. It knows no session but the leader's.
///
/// sums    as contributions come, in the leader's order. Where a round may close without a worker
///         they are kept whole until a Merge names them
/// thread  one executor
class HostedModel {
 public:
  using Send = std::function<void(const std::vector<MemberId>&, const ShardResult&)>;
  /// `send`: a result to those of these workers that are here. `release`: gives a worker back the
  /// credit of what it has sent.
  HostedModel(ShardContext& context, ShardRows& rows, Send send, RoundSums::Release release);

  const ShardChunks& chunks() const { return chunks_; }

  // what workers send
  /// Make sure that there is a place for a contribution of this key, of which a chunk is to come.
  /// False: it does not count any more.
  bool expect(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec);
  /// The place is still there.
  bool is_expected(const proto::ContributionKey& key) const;
  /// Take a chunk of an expected contribution. Returns the message to the leader, once all of its
  /// chunks have come.
  /// fails  invalid_argument
  Result<std::optional<proto::Whole>> take(const proto::ContributionKey& key,
                                           const std::shared_ptr<const Codec>& codec,
                                           const proto::Push& push, Buffer payload,
                                           std::size_t bytes);

  // what the leader asks for
  void open(const proto::Opened& opened);
  /// A worker is gone.
  void drop(MemberId member) { staged_.drop(member); }
  Task<Status> take_model(proto::ServerModel model);
  /// Compute memory again for more workers, or fewer, or a larger share of the model.
  /// fails  as check_memory: then it is as before
  Status resize(const proto::MemoryPlan& wanted);
  Status set_optimizer(const proto::OptimizerChange& change);
  Status place(proto::Route route);
  Status load(const proto::ServerChunk& head, Bytes values) { return chunks_.load(head, values); }
  Task<Status> begin(proto::ServerState state);
  Result<std::vector<float>> read_chunk(const proto::ServerChunk& head);
  /// Keep this version for `read_chunk`. Version 0: nothing is to be kept any more; with a round:
  /// it is in a checkpoint.
  Task<Status> freeze(proto::ServerState state);
  Task<Result<proto::MergeReply>> merge(proto::Merge merge);
  Task<Status> step(proto::Step step);
  Status commit(const proto::ServerState& state);
  Task<Result<journal::Parts::Numbers>> recall(proto::Recall wanted) {
    return journal_.recall(wanted);
  }
  /// Of each chunk that lies here, in the plan's order, while rounds go on.
  /// fails  aborted: the version is not the present one, or a round is merged; unavailable: a
  ///        checkpoint is being read
  Task<Result<std::vector<StatisticsPart>>> statistics(proto::Statistics wanted);

  /// The session with the leader has ended: nothing lies here any more.
  Task<void> forget();
  void add_to(proto::ServerReport& report) const;
  /// For the metrics at this server's own port.
  void show(const proto::ServerReport& report) const;

 private:
  Result<ShardRound::Contributions> contributions_of(const proto::Merge& merge,
                                                     const std::string& what) const;
  Task<Result<std::vector<StatisticsPart>>> read_statistics(Snapshot& snapshot) const;
  void drop_round();

  ShardContext& context_;
  const Send send_;
  const RoundSums::Release release_;
  ShardChunks chunks_;
  ShardMemory memory_;
  StagedContributions staged_;
  RoundSums sums_;
  Event room_;  ///< for copies of a snapshot (ParameterStore::snapshot_is_full)
  ShardJournal journal_;
  std::shared_ptr<Snapshot> frozen_;
  std::shared_ptr<ShardRound> round_;  ///< merged, not committed
  // of all rounds
  std::uint64_t rounds_ = 0;
  double merge_seconds_ = 0;
};

}  // namespace centroid::server
