#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "common/checkpoint/checkpoint.h"
#include "server/api/view.h"
#include "server/shard/placement.h"
#include "server/shard/shard_group.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// The leader's side of tables that lie on several servers: which server has which keys, what each
/// is given when it comes, and what a checkpoint gathers from all.
///
/// place    when the servers of the start are here: keys by bucket, in equal shares. Who joins
///          later gets its share, who is drained gives all away, some buckets at a time while calls
///          go on (rows_servers_moves.cc). Who is gone is waited for: a server of its name gets its
///          keys again, as the newest checkpoint has them, and its journal
/// journals a checkpoint is written before pushes are: it names the servers whose journals count.
///          So a leader that begins anew waits for these, unless the checkpoint is the last of a
///          job that was ended: then nothing is in journals, and any number of servers may go on.
///          A server gets its first bucket when a checkpoint names it, and is let go when one
///          names it no longer
/// thread   one executor; what reads files runs on another and comes back for each piece
class RowsServers {
 public:
  struct Options {
    std::string leader, tables, journal_dir;
    std::size_t servers = 1;  ///< to wait for, the leader included
    bool keeps_journal = false;
    std::chrono::milliseconds journal_sync{}, lease{};
  };
  struct Hooks {
    std::function<Task<Status>()> start_journal;  ///< of the leader's rows
    std::function<Task<Status>()> write_checkpoint;
    std::function<void(Error)> fail;                          ///< there is no way to go on
    std::function<void(const std::string& server)> released;  ///< no rows lie there any more
  };
  RowsServers(Executor executor, Executor blocking, const Clock& clock, RowsService& rows,
              ShardGroup& shards, Options options, Hooks hooks);

  /// Look at what there is, before servers join; of a run that was killed take up what the leader
  /// had. False: all rows are the leader's, as with one server.
  /// fails  as RowsService::restore and replay
  Result<bool> prepare(const CheckpointDirectory& checkpoints, bool resumes, std::string& run_id);
  /// Place the rows and keep them placed, until cancelled.
  Task<void> run();

  /// Move buckets to where they are to lie, until cancelled.
  Task<void> run_moves();

  /// Rows lie, or are to lie, on this server, or a checkpoint needs it.
  bool holds(const std::string& server) const;
  struct Share {
    std::size_t buckets = 0, moves = 0;  ///< that lie there; that are to come or go
    std::uint64_t rows = 0, bytes = 0;   ///< as it told last; of the leader not told here
  };
  Share share_of(const std::string& server) const;
  bool needs_checkpoint() const;
  /// Why `freeze` fails now, for a reason that passes by itself; empty: it may not.
  std::string unsettled() const;
  /// As RowsService's.
  bool journal_wants_checkpoint(std::uint64_t bytes) const;
  /// The next checkpoint is the last: from it on nothing is pushed any more.
  void end() { is_ending_ = true; }
  /// Until all servers have their rows, at most so long: the last checkpoint needs them.
  Task<void> await_all(std::chrono::milliseconds limit);
  /// `await_all` waits for this server, whatever else is over.
  bool awaits(const std::string& server) const;
  /// Rows lie on this server, or may: they wait for it while it is gone.
  bool serves(const std::string& server) const;
  /// Servers that were lost so far.
  std::uint64_t losses() const { return losses_; }

  /// Keep the present rows of all servers; what the leader has.
  /// fails  unavailable: a server is gone
  Task<Result<std::shared_ptr<RowsSnapshot>>> freeze();
  /// Files of what is kept, gathered from all; to be written on the blocking executor before
  /// `thaw`.
  std::vector<CheckpointPart> parts(std::shared_ptr<RowsSnapshot> mine);
  Task<void> thaw(bool is_written);

  /// Ask all servers how their tables are.
  Task<void> refresh();
  /// Add what they said last.
  void add_to(std::vector<TableView>& views) const;
  void waits(std::vector<WaitView>& views) const;

 private:
  using Link = std::shared_ptr<ShardGroup::Link>;
  enum class State : std::uint8_t { kAbsent, kLoaded, kServing };
  /// One of the servers of the route; the first, the leader, has no link.
  struct Holder {
    std::string name;
    Link link = nullptr;
    std::uint64_t max_payload = 0;  ///< of the link, for the blocking thread
    State state = State::kAbsent;
    proto::TablesReport report = {};
    proto::RowsFrozen frozen = {};  ///< of the last checkpoint
    TimePoint gone_since = {};
    bool is_named = false;  ///< by the newest checkpoint, so that its journal counts
    bool has_held = false;  ///< buckets
    bool is_full = false;   ///< it has no memory for more
    bool is_kept = false;   ///< it is in the checkpoint that is being written
    /// Of the session in which it keeps rows for that one; a later one knows nothing of them.
    Link kept_link = nullptr;
  };
  /// A checkpoint with rows.
  struct Saved {
    CheckpointEntry entry;
    std::vector<std::string> files;
    std::map<std::string, std::uint64_t> journals;  ///< by server; the leader's by ""
    bool is_followed = false;
    std::uint64_t clock = 0;  ///< when it was made
    std::uint64_t route = 0;  ///< by which rows lay so; 0: as `place` places them
    std::map<std::string, std::vector<std::uint16_t>> buckets;  ///< as `journals`
    bool is_there() const;                                      ///< all its files; blocks
  };
  /// Some buckets go from one server to another.
  struct Move {
    std::string from, to;
    std::vector<std::uint16_t> buckets;
  };

  bool is_here(const Holder& holder) const { return holder.link && !holder.link->is_gone(); }
  Status place(std::vector<std::string> others, const Saved* saved);
  bool choose();
  Task<void> look();
  class Bringing;
  Task<Status> bring(std::vector<std::size_t> which);
  Task<Status> await_replay(std::size_t which);
  Task<Status> begin();
  Task<Status> settle_claims();
  void lost(Holder& holder);
  void put_off(const std::string& what, const Error& why);
  Task<Status> ask(std::size_t which, proto::TablesKind kind, std::vector<std::byte> head);
  void take_report(Holder& holder, proto::TablesReport report);
  void tell_elsewhere(const proto::TablesReport& before, const proto::TablesReport& now);

  // rows_servers_moves.cc
  std::optional<std::size_t> index_of(const std::string& server) const;
  bool owns(std::size_t which) const;
  std::vector<std::uint16_t> target() const;
  std::optional<Move> next_move() const;
  bool may_move(const std::string& from, const std::string& to) const;
  Task<void> move_buckets();
  Task<Result<std::vector<std::uint64_t>>> find(std::string from,
                                                std::vector<std::uint16_t> buckets);
  Task<Status> move_some(std::string from, std::string to, std::vector<std::uint16_t> some);
  Task<Status> hold(std::string from, std::vector<std::uint16_t> some);
  Task<Status> copy(std::string from, std::string to);
  Task<Status> tell(std::string server, proto::TablesKind kind, const proto::Route& route,
                    std::vector<std::uint16_t> some);
  Task<bool> pause_moves();
  void resume_moves() { --pauses_; }
  Task<bool> welcome();
  Task<bool> let_go();
  Task<Status> fetch_all_pushes(std::size_t which);
  Task<bool> owe_checkpoint();

  // on the blocking thread, or before servers join
  Result<std::optional<Saved>> newest() const;
  std::vector<std::uint16_t> owners_of(const Saved& saved) const;
  Status load(const Saved& saved, const std::vector<bool>& wanted);
  Status load_table(const Saved& saved, std::size_t table, const std::string& file,
                    const std::vector<bool>& wanted);
  Status put_rows(std::size_t server, std::size_t table, const RowTable::Block& block,
                  std::uint64_t clock);
  Status put_pushes(std::size_t server, const std::vector<PushWindows::Entry>& clients);
  static Result<bool> fetch_rows(RowsServers& self, const Link& link, std::size_t table,
                                 RowTable::Block& block);
  static Result<PushedRows> fetch_pushes(RowsServers& self, const Link& link,
                                         std::uint32_t clients);
  Result<transport::Reply> ask_blocking(const Link& link, proto::TablesKind kind,
                                        std::vector<std::byte> head, Bytes payload = {});

  Executor executor_, blocking_;
  const Clock& clock_;
  RowsService& rows_;
  ShardGroup& shards_;
  const Options options_;
  const Hooks hooks_;
  const CheckpointDirectory* checkpoints_ = nullptr;
  std::string* run_id_ = nullptr;
  bool resumes_ = false;  ///< there may be a checkpoint to begin with
  bool is_mine_loaded_ = false, is_begun_ = false, is_ending_ = false, is_ended_ = false;
  bool awaits_all_ = false;      ///< who is gone, for the last checkpoint
  bool kept_is_last_ = false;    ///< what is kept for a checkpoint: nothing is pushed behind it
  bool is_direct_ = false;       ///< `load` runs on the executor itself
  std::optional<Saved> saved_;   ///< of the start
  std::vector<Holder> holders_;  ///< by server of the route; empty: it is not known yet
  std::string why_ = "the tables wait for their servers";
  TimePoint since_, refreshed_;
  TimePoint again_ = {};  ///< not before: what has failed is tried again
  // buckets that move
  bool is_moving_ = false;  ///< some are between two servers
  bool is_frozen_ = false;  ///< from `freeze` to `thaw`
  std::size_t pauses_ = 0;  ///< who needs the route to stay as it is
  TimePoint move_again_ = {};
  TimePoint moves_since_ = {};
  std::string move_trouble_;
  proto::Route kept_route_;            ///< of what is kept for a checkpoint
  std::vector<std::string> released_;  ///< when a checkpoint is written that does not name them
  // changes on the others, and here: seen, in what is kept for a checkpoint, in one
  std::uint64_t seen_ = 0, kept_ = 0, checkpointed_ = 0;
  std::uint64_t mine_kept_ = 0, mine_checkpointed_ = 0;
  std::uint64_t losses_ = 0;
};

}  // namespace centroid::server
