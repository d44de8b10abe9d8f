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

/// The chunks of a model on a shard server, and the leader's operations on them: load, sum, step,
/// commit, read and freeze, with their journal. Sessions with workers are elsewhere (ShardWorkers).
///
/// sums    contributions are summed on arrival, in the leader's order. If a round may close without
///         a worker, they are stored until a Merge names them
/// thread  one executor
class HostedModel {
 public:
  using Send = std::function<void(const std::vector<MemberId>&, const ShardResult&)>;
  /// `send`: sends a result to those of the workers that are connected. `release`: returns to a
  /// worker the credit of its payloads.
  HostedModel(ShardContext& context, ShardRows& rows, Send send, RoundSums::Release release);

  const ShardChunks& chunks() const { return chunks_; }

  // messages of workers
  /// Prepare for a chunk of the contribution with this key. False: the contribution no longer
  /// counts.
  bool expect(const proto::ContributionKey& key, const std::shared_ptr<const Codec>& codec);
  /// Whether the contribution still counts.
  bool is_expected(const proto::ContributionKey& key) const;
  /// Take a chunk of an expected contribution. Returns the message to the leader when the
  /// contribution is complete.
  /// fails  invalid_argument
  Result<std::optional<proto::Whole>> take(const proto::ContributionKey& key,
                                           const std::shared_ptr<const Codec>& codec,
                                           const proto::Push& push, Buffer payload,
                                           std::size_t bytes);

  // requests of the leader
  void open(const proto::Opened& opened);
  /// A worker left the cluster.
  void drop(MemberId member) { staged_.drop(member); }
  Task<Status> take_model(proto::ServerModel model);
  /// Recompute the memory for another number of workers or servers.
  /// fails  as check_memory; then nothing changes
  Status resize(const proto::MemoryPlan& wanted);
  Status set_optimizer(const proto::OptimizerChange& change);
  Status place(proto::Route route);
  Status load(const proto::ServerChunk& head, Bytes values) { return chunks_.load(head, values); }
  Task<Status> begin(proto::ServerState state);
  Result<std::vector<float>> read_chunk(const proto::ServerChunk& head);
  /// Take a snapshot of this version for `read_chunk`. Version 0 drops the snapshot; if a round is
  /// given, a checkpoint has it.
  Task<Status> freeze(proto::ServerState state);
  Task<Result<proto::MergeReply>> merge(proto::Merge merge);
  Task<Result<proto::MergeReply>> step(proto::Step step);
  Task<Status> commit(proto::ServerState state);
  Task<Result<journal::Parts::Numbers>> recall(proto::Recall wanted) {
    return journal_.recall(wanted);
  }
  /// Statistics of each chunk on this server, in the plan's order, without stopping rounds.
  /// fails  aborted: the version is not the present one, or a round is merged; unavailable: a
  ///        checkpoint is being read
  Task<Result<std::vector<StatisticsPart>>> statistics(proto::Statistics wanted);

  /// The session with the leader has ended: drop all state.
  Task<void> forget();
  void add_to(proto::ServerReport& report) const;
  /// For the metrics at this server's own port.
  void show(const proto::ServerReport& report) const;

 private:
  Result<ShardRound::Contributions> contributions_of(const proto::Merge& merge,
                                                     const std::string& what) const;
  Task<Result<std::vector<StatisticsPart>>> read_statistics(Snapshot& snapshot) const;
  void drop_round();
  void drop_refused();

  ShardContext& context_;
  const Send send_;
  const RoundSums::Release release_;
  ShardChunks chunks_;
  ShardMemory memory_;
  StagedContributions staged_;
  RoundSums sums_;
  Event room_;  ///< for copies of a snapshot (ParameterStore::snapshot_is_full), or of a sum
  ShardJournal journal_;
  std::shared_ptr<Snapshot> frozen_;
  std::shared_ptr<ShardRound> round_;  ///< merged and not yet committed
  // totals
  std::uint64_t rounds_ = 0;
  double merge_seconds_ = 0;
};

}  // namespace centroid::server
