#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/checkpoint/journal_reader.h"
#include "server/service/round_journal.h"

namespace centroid::server {

/// The leader's journal on its way into the store, round by round: the same steps on the same bits
/// as in training. Of rounds that were made with several servers it has the leader's chunks; the
/// others are recalled from the journals of their servers, which may have to be waited for. So a
/// round is replayed whole, and replay ends at one version: that of the last round that the
/// leader's journal has as committed. It exists from the moment when a state was loaded until its
/// journal's end; nobody joins meanwhile.
class Replay : private JobPart {
 public:
  /// Of the optimizer's steps. It may change between two rounds, and each segment has its own.
  struct Rate {
    double learning_rate = 0;
    std::string schedule;
    bool operator==(const Rate&) const = default;
  };
  /// Its rounds must have been written as `journal` would write them.
  Replay(JobContext& context, std::unique_ptr<journal::Reader> reader, const RoundJournal& journal,
         ShardGroup& shards, LocalShard& local);

  /// As far as it goes. True: to the end; false: a server must come first, `waits_for`.
  Task<Result<bool>> run();
  /// Whom it waits for, until a round has been replayed; empty: nobody.
  const std::string& waited_for() const { return waits_for_; }
  const std::string& reason() const { return why_; }
  /// An operator goes on without the part that this server has.
  void give_up(const std::string& server) { given_up_.insert(server); }

 private:
  struct Recalls;
  Status check(const journal::Base& base);
  Status read_round();
  Result<bool> read_chunk(const journal::Head& head);
  Task<Result<bool>> replay_end();
  Task<Result<bool>> recall_all(std::vector<Chunk> chunks);
  Task<void> recall_some(Recalls* all);
  Task<Status> recall(proto::Recall head, std::shared_ptr<ShardGroup::Link> link, Chunk chunk);
  void cut(const std::string& server);
  Task<Status> finish();
  Task<Status> replay_round(journal::Form form, journal::Commit commit);
  Task<Status> replay_results(Generation generation);
  bool is_mine(ChunkId chunk) const {
    return route_.owners.empty() || route_.owners[chunk.value] == 0;
  }

  const journal::Form form_;
  const std::string terms_;
  ShardGroup& shards_;
  LocalShard& local_;

  const std::unique_ptr<journal::Reader> reader_;
  Rate rate_;  ///< of the present segment
  /// Why rounds of the present segment cannot be replayed; those that the checkpoint has may stand
  /// there.
  std::optional<Error> mismatch_;
  journal::Route route_;   ///< present; without servers: all chunks are in this journal
  std::vector<bool> has_;  ///< by chunk: of the present attempt
  std::size_t count_ = 0;  ///< of them
  journal::Head present_;  ///< of the last chunk
  /// A round's end has been read, and what other servers have of it is not all here.
  std::optional<journal::Reader::End> end_;
  bool is_at_gap_ = false, is_cut_ = false;  ///< nothing behind can be replayed
  const Round first_;
  const TimePoint begin_;
  std::string waits_for_, why_;
  std::set<std::string> given_up_;  ///< servers that an operator goes on without
};

}  // namespace centroid::server
