#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/until.h"
#include "common/proto/servers.h"
#include "server/shard/round_sums.h"
#include "server/shard/shard_chunks.h"
#include "server/shard/shard_context.h"
#include "server/shard/shard_journal.h"
#include "server/shard/staged_contributions.h"

namespace centroid::server {

/// The result of a chunk, for workers.
struct ShardResult {
  proto::ResultChunk head;
  std::shared_ptr<const std::vector<std::byte>> values;
  std::uint32_t crc = 0;
};

/// One round on a shard server, from the leader's Merge to its Commit: sums, means, results and the
/// step. It has no effect before the commit.
///
/// lost    the running task has a reference. After `drop`, or when the leader is lost, it ends
///         without touching the chunks
/// thread  one executor
class ShardRound {
 public:
  struct Parts {
    ShardChunks& chunks;
    StagedContributions& staged;
    RoundSums& sums;
    Event& room;
    ShardJournal& journal;
    /// Send a result to those of the workers that are connected.
    const std::function<void(const std::vector<MemberId>&, const ShardResult&)>& send;
  };
  ShardRound(ShardContext& context, const Parts& parts, proto::Merge merge);

  using Contributions = std::vector<std::shared_ptr<const StagedContribution>>;
  /// Compute sums and means, and make the step unless it waits for the norm. `contributions`: those
  /// that the Merge names, if they are stored
  Task<Result<proto::MergeReply>> merge(Contributions contributions);
  Task<Result<proto::MergeReply>> step(proto::Step step);
  /// At the commit: make the workers' step, which cannot be undone. So it was only tried before.
  Task<Status> follow();
  /// Whether `step`, or `follow` and the commit, may come now. Each comes once.
  bool awaits_step() const { return stage_ == Stage::kMerged; }
  bool is_prepared() const { return stage_ == Stage::kPrepared; }
  /// The leader continues without this round, or it is committed.
  void drop() { is_dropped_ = true; }
  bool is_of(Round round) const { return merge_.round == round; }
  bool is_before(Round round) const { return merge_.round < round; }
  /// Part of it is in the parameters or slots already.
  bool has_changed_state() const {
    return has_stepped_ &&
           (chunks_.model().apply_on_worker || chunks_.store().optimizer().slots() > 0);
  }
  bool is_attempt(Round round, std::uint32_t attempt) const {
    return merge_.round == round && merge_.attempt == attempt;
  }
  /// Time of sums, step and journal.
  Duration time() const { return time_; }

 private:
  /// Whether the leader is connected. A task of its session is cancelled before its data is
  /// destroyed.
  bool is_led() const { return !is_dropped_ && context_.leader.is_open(); }
  Status check_led() const;
  ModelShard& shard() const { return chunks_.shard(); }
  bool has_codec() const { return shard().encodes(); }
  /// Record that a chunk is done. True: yield now.
  bool ends_turn();
  Task<Status> yield();

  Task<Status> await_snapshot();
  Task<Status> finish_sums();
  Task<Status> begin_journal();
  Task<Status> drain_journal();
  Task<Status> end_journal();
  void add_up(const Chunk& chunk);
  bool refuses_nonfinite() const { return chunks_.model().refuses_nonfinite; }
  Task<Status> make_step(proto::Step step);
  Task<Status> apply_all();
  Task<Status> try_all();
  proto::MergeReply refusal() const;
  Task<Status> journal_sums();
  Task<Status> make_means(bool has_sums, std::vector<double>& squares);
  void journal_mean(ChunkId chunk, Bytes mean);
  void apply(const Chunk& chunk);
  // results
  void begin_encoding();
  Status encode(const Chunk& chunk);
  void emit(const Chunk& chunk, Bytes values);
  Task<Status> measure(std::vector<double>& squares);

  ShardContext& context_;
  ShardChunks& chunks_;
  StagedContributions& staged_;
  RoundSums& sums_;
  Event& room_;
  ShardJournal& journal_;
  const std::function<void(const std::vector<MemberId>&, const ShardResult&)>& send_;
  const proto::Merge merge_;
  Contributions contributions_;     ///< in the order of merge_.parts; only if they are stored
  std::vector<WeighedPart> parts_;  ///< the same, with their weights
  std::string what_;                ///< the present activity
  /// kMerged: the step waits for the norm.
  enum class Stage { kRunning, kMerged, kPrepared } stage_ = Stage::kRunning;
  bool is_dropped_ = false, has_stepped_ = false, has_large_mean_ = false;
  std::optional<ChunkId> overflow_;  ///< its sum or result is not finite
  std::size_t turn_ = 0;             ///< chunks since the step or the merge began
  Duration time_{};
  using Payload = std::shared_ptr<const std::vector<std::byte>>;
  std::map<ChunkId, Payload> encoded_;  ///< with codec_down
};

}  // namespace centroid::server
