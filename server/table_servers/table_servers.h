#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/table_servers/bucket_mover.h"
#include "server/table_servers/table_checkpoint.h"
#include "server/table_servers/table_loader.h"

namespace centroid::server {

/// Tables on several servers, as the leader runs them: which server has which keys, what a server
/// gets when it joins, and what a checkpoint collects from all.
///
/// placement  when the servers of the start have joined: keys by bucket, in equal shares. A server
///            that joins later gets its share. One that drains gives all away, some buckets at a
///            time, while requests continue (BucketMover). For one that is lost the tables wait: a
///            server of its name gets the same keys, from the newest checkpoint and its journal
/// journals   a checkpoint is written before the first push: it names the servers whose journals
///            count. So a leader that resumes waits for these, unless the checkpoint is the last of
///            a job that ended: then no journal has anything, and any number of servers will do.
///            A server gets its first bucket when a checkpoint names it, and may leave when one
///            no longer does
/// thread     one executor; what reads files runs on another and returns for each piece
class TableServers {
 public:
  TableServers(Executor executor, Executor blocking, const Clock& clock, RowsService& rows,
               ShardGroup& shards, TableOptions options, TableHooks hooks);

  /// Look at the checkpoints before servers join. Of a run that was killed, load what the leader
  /// had. False: all rows are the leader's, as with one server.
  /// fails  as RowsService::restore and replay
  Task<Result<bool>> prepare(const CheckpointDirectory& checkpoints, bool resumes,
                             std::string& run_id);
  /// Place the rows, until cancelled.
  Task<void> run();
  /// Move buckets to their servers, until cancelled.
  Task<void> move_buckets() { return mover_.run(); }
  /// A server came, went or drains.
  void servers_changed() { group_.notify(); }

  // checkpoints
  /// Freeze the present rows of all servers. The leader's are in the snapshot.
  /// fails  unavailable: a server is gone
  Task<Result<std::shared_ptr<RowsSnapshot>>> freeze() { return checkpoint_.freeze(); }
  /// Files of what is frozen, to be written on the blocking executor before `thaw`.
  std::vector<CheckpointPart> parts(std::shared_ptr<RowsSnapshot> leaders) {
    return checkpoint_.parts(std::move(leaders));
  }
  Task<void> thaw(bool is_written) { return checkpoint_.thaw(is_written); }
  bool needs_checkpoint() const { return checkpoint_.is_needed(); }
  /// As RowsJournal::requires_checkpoint, of the other servers.
  bool journal_wants_checkpoint(std::uint64_t bytes) const {
    return group_.journal_wants_checkpoint(bytes);
  }
  /// Why a checkpoint cannot be made now, for a reason that passes by itself; empty: it can.
  std::string why_unsettled() const;
  /// The next checkpoint is the last: after it no push is accepted.
  void end();
  /// Until all servers have their rows, or the limit: the last checkpoint needs them.
  Task<void> await_all(std::chrono::milliseconds limit);

  // views
  /// Ask all servers for the state of their tables.
  Task<void> refresh() { return group_.refresh(); }
  /// Add what they reported last.
  void add_to(std::vector<TableView>& views) const { group_.add_to(views); }
  BucketMover::Share share_of(const std::string& server) const { return mover_.share_of(server); }
  /// Servers that were lost so far.
  std::uint64_t losses() const { return group_.losses; }
  /// It has rows or will have some, or a checkpoint needs it.
  bool holds(const std::string& server) const;
  /// `await_all` waits for this server, whatever else is over.
  bool awaits(const std::string& server) const;
  /// Its rows wait for it while it is gone.
  bool serves(const std::string& server) const;
  void waits(std::vector<WaitView>& views) const;

 private:
  // the start (table_servers_start.cc)
  Status place(std::vector<std::string> others, const SavedTables* saved);
  bool choose();
  Task<Status> begin();
  Task<Status> resolve_claims();

  Task<void> advance();
  std::vector<std::size_t> find_absent(std::string& missing);
  std::string missing_servers() const;
  Task<bool> load_onto(std::vector<std::size_t> which);
  Task<bool> serve_loaded();
  // Servers that come and go while their tables are in use. False: call `advance` again.
  Task<bool> add_servers();
  Task<bool> release_drained();
  Task<bool> require_checkpoint();
  Task<Status> fetch_all_pushes(std::size_t which);

  TableGroup group_;
  BucketMover mover_;
  TableLoader loader_;
  TableCheckpoint checkpoint_;
  std::optional<SavedTables> saved_;   ///< the checkpoint of the start, until `begin`
  std::vector<std::string> released_;  ///< when a checkpoint is written that does not name them
  std::string* run_id_ = nullptr;
  bool awaits_all_ = false;  ///< servers that are gone, for the last checkpoint
  const TimePoint since_;
};

}  // namespace centroid::server
