#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/service/rows_bringing.h"
#include "server/service/rows_changes.h"
#include "server/service/rows_start.h"

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
  using Options = RowsOptions;
  using Hooks = RowsHooks;
  using Share = RowsMoves::Share;
  RowsServers(Executor executor, Executor blocking, const Clock& clock, RowsService& rows,
              ShardGroup& shards, Options options, Hooks hooks);

  /// Look at what there is, before servers join; of a run that was killed take up what the leader
  /// had. False: all rows are the leader's, as with one server.
  /// fails  as RowsService::restore and replay
  Task<Result<bool>> prepare(const CheckpointDirectory& checkpoints, bool resumes,
                             std::string& run_id);
  /// Place the rows and keep them placed, until cancelled.
  Task<void> run();

  /// Move buckets to where they are to lie, until cancelled.
  Task<void> run_moves() { return moves_.run(); }

  /// Rows lie, or are to lie, on this server, or a checkpoint needs it.
  bool holds(const std::string& server) const { return changes_.holds(server); }
  Share share_of(const std::string& server) const { return moves_.share_of(server); }
  bool needs_checkpoint() const { return kept_.needs_checkpoint(); }
  /// Why `freeze` fails now, for a reason that passes by itself; empty: it may not.
  std::string unsettled() const;
  /// As RowsJournal::wants_checkpoint, of the others.
  bool journal_wants_checkpoint(std::uint64_t bytes) const {
    return servers_.journal_wants_checkpoint(bytes);
  }
  /// The next checkpoint is the last: from it on nothing is pushed any more.
  void end() { ctx_.is_ending = true; }
  /// Until all servers have their rows, at most so long: the last checkpoint needs them.
  Task<void> await_all(std::chrono::milliseconds limit);
  /// `await_all` waits for this server, whatever else is over.
  bool awaits(const std::string& server) const;
  /// Rows lie on this server, or may: they wait for it while it is gone.
  bool serves(const std::string& server) const;
  /// Servers that were lost so far.
  std::uint64_t losses() const { return ctx_.losses; }

  // as RowsKept
  Task<Result<std::shared_ptr<RowsSnapshot>>> freeze() { return kept_.freeze(); }
  std::vector<CheckpointPart> parts(std::shared_ptr<RowsSnapshot> mine) {
    return kept_.parts(std::move(mine));
  }
  Task<void> thaw(bool is_written) { return kept_.thaw(is_written); }

  /// Ask all servers how their tables are.
  Task<void> refresh() { return servers_.refresh(); }
  /// Add what they said last.
  void add_to(std::vector<TableView>& views) const { servers_.add_to(views); }
  void waits(std::vector<WaitView>& views) const;

 private:
  using Link = RowsHolder::Link;
  using Holder = RowsHolder;
  using State = RowsHolder::State;

  Task<void> look();
  Task<Status> bring(std::vector<std::size_t> which);

  RowsContext ctx_;
  RowsHolders servers_;
  RowsMoves moves_;
  RowsLoader loader_;
  RowsKept kept_;
  RowsStart start_;
  RowsChanges changes_;
  std::string* run_id_ = nullptr;
  bool awaits_all_ = false;  ///< who is gone, for the last checkpoint
  const TimePoint since_;
};

}  // namespace centroid::server
