#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "server/service/past_rounds.h"

namespace centroid::server {

/// The leader's journal on its way into the store: the same steps on the same bits as in training.
/// Of rounds that were made with several servers it has the leader's chunks; the others are
/// recalled from the journals of their servers, which may have to be waited for. So a round is
/// replayed whole, and replay ends at one version: that of the last round that the leader's journal
/// has as committed. It exists from the moment when a state was loaded until its journal's end;
/// nobody joins meanwhile.
class Replay : private JobPart {
 public:
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
  Status read_ahead(std::size_t rounds);
  bool is_alone(const PastRound& round) const;
  Task<Result<bool>> replay_next();
  Result<std::vector<PastStep>> steps_of(std::size_t count);
  Task<Status> make_steps(std::vector<PastStep>* steps, std::size_t rounds);
  Task<Status> replay_results(const PastRound& round);
  void end_round();
  Task<Result<bool>> recall_all(const PastRound& round);
  Task<void> recall_some(Recalls* all);
  Task<Status> recall(proto::Recall head, std::shared_ptr<ShardSession> shard, Chunk chunk);
  void cut(const std::string& server);
  Task<Status> finish();
  Status check_finite() const;

  ShardGroup& shards_;
  LocalShard& local_;
  PastRounds past_;
  std::deque<PastRound> rounds_;  ///< that are read and not replayed
  std::size_t at_once_ = 1;       ///< rounds to read ahead
  bool is_cut_ = false;           ///< nothing behind can be replayed
  const Round first_;
  const TimePoint begin_;
  std::string waits_for_, why_;
  std::set<std::string> given_up_;  ///< servers that an operator goes on without
};

}  // namespace centroid::server
