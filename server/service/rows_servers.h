#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/service/rows_kept.h"
#include "server/service/rows_loader.h"
#include "server/service/rows_moves.h"

namespace centroid::server {

/// The leader's side of tables that lie on several servers: which server has which keys, what each
/// is given when it comes, and what a checkpoint gathers from all.
///
/// place    when the servers of the start are here: keys by bucket, in equal shares. Who joins
///          later gets its share, who is drained gives all away, some buckets at a time while calls
///          go on (RowsMoves). Who is gone is waited for: a server of its name gets its keys again,
///          as the newest checkpoint has them, and its journal
/// journals a checkpoint is written before pushes are: it names the servers whose journals count.
///          So a leader that begins anew waits for these, unless the checkpoint is the last of a
///          job that was ended: then nothing is in journals, and any number of servers may go on.
///          A server gets its first bucket when a checkpoint names it, and is let go when one
///          names it no longer
/// thread   one executor; what reads files runs on another and comes back for each piece
class RowsServers {
 public:
  RowsServers(Executor executor, Executor blocking, const Clock& clock, RowsService& rows,
              ShardGroup& shards, RowsOptions options, RowsHooks hooks);

  RowsGroup& group() { return group_; }
  const RowsGroup& group() const { return group_; }
  RowsMoves& moves() { return moves_; }
  const RowsMoves& moves() const { return moves_; }
  RowsKept& kept() { return kept_; }

  /// Look at what there is, before servers join; of a run that was killed take up what the leader
  /// had. False: all rows are the leader's, as with one server.
  /// fails  as RowsService::restore and replay
  Task<Result<bool>> prepare(const CheckpointDirectory& checkpoints, bool resumes,
                             std::string& run_id);
  /// Place the rows and keep them placed, until cancelled.
  Task<void> run();

  /// Rows lie, or are to lie, on this server, or a checkpoint needs it.
  bool holds(const std::string& server) const;
  /// Why a checkpoint cannot be made now, for a reason that passes by itself; empty: it may be.
  std::string unsettled() const;
  /// The next checkpoint is the last: from it on nothing is pushed any more.
  void end() { group_.is_ending = true; }
  /// Until all servers have their rows, at most so long: the last checkpoint needs them.
  Task<void> await_all(std::chrono::milliseconds limit);
  /// `await_all` waits for this server, whatever else is over.
  bool awaits(const std::string& server) const;
  /// Rows lie on this server, or may: they wait for it while it is gone.
  bool serves(const std::string& server) const;
  void waits(std::vector<WaitView>& views) const;

 private:
  // the start (rows_start.cc)
  Status place(std::vector<std::string> others, const SavedRows* saved);
  bool choose();
  Task<Status> begin();
  Task<Status> resolve_claims();

  Task<void> look();
  std::vector<std::size_t> find_absent(std::string& missing);
  Task<bool> bring(std::vector<std::size_t> which);
  Task<bool> serve_loaded();
  // servers that come and go while their tables are in use; false: look again
  Task<bool> welcome();
  Task<bool> let_go();
  Task<bool> require_checkpoint();
  Task<Status> fetch_all_pushes(std::size_t which);

  RowsGroup group_;
  RowsMoves moves_;
  RowsLoader loader_;
  RowsKept kept_;
  std::optional<SavedRows> saved_;     ///< the checkpoint of the start, until `begin`
  std::vector<std::string> released_;  ///< when a checkpoint is written that does not name them
  std::string* run_id_ = nullptr;
  bool awaits_all_ = false;  ///< who is gone, for the last checkpoint
  const TimePoint since_;
};

}  // namespace centroid::server
