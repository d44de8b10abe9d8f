#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/until.h"
#include "common/base/clock.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/shard/shard_group.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Settings of tables on several servers.
struct TableOptions {
  std::string leader, tables, journal_dir;
  std::size_t servers = 1;  ///< to wait for, the leader included
  bool writes_journal = false;
  std::chrono::milliseconds journal_sync{}, lease{};
};

/// What tables on several servers need from the job's server.
struct TableHooks {
  std::function<Task<Status>()> start_journal;  ///< of the leader's rows
  std::function<Task<Status>()> write_checkpoint;
  std::function<void(Error)> fail;  ///< there is no way to continue
  std::function<void()> changed;    ///< `TableServers::why_unsettled` may be another
  std::function<void(const std::string& server)> released;  ///< it has no rows any more
};

enum class HolderState : std::uint8_t { kAbsent, kLoaded, kServing };
using HolderSession = std::shared_ptr<ShardSession>;

/// One of the servers of the route; the first, the leader, has no session.
struct TableHolder {
  std::string name;
  HolderSession shard = nullptr;
  std::uint64_t max_payload = 0;  ///< of the session, for the blocking thread
  HolderState state = HolderState::kAbsent;
  proto::TablesReport report = {};
  proto::RowsFrozen frozen = {};  ///< of the last checkpoint
  TimePoint gone_since = {};
  bool is_named = false;  ///< by the newest checkpoint, so that its journal counts
  bool has_held = false;  ///< buckets
  bool is_full = false;   ///< it has no memory for more
  bool is_saved = false;  ///< it is in the checkpoint that is being written
  /// Of the session in which it froze rows for that one; a later session has none frozen.
  HolderSession frozen_shard = nullptr;

  bool is_here() const { return shard && !shard->is_gone(); }
};

/// The servers that have rows: what is known of them, and requests to them. Its fields are the
/// state that the parts of TableServers share. Of one thread, except `ask_blocking` and
/// `fetch_pushes`.
struct TableGroup {
  const Executor executor, blocking;
  const Clock& clock;
  RowsService& rows;
  ShardGroup& shards;
  const TableOptions options;
  const TableHooks hooks;
  bool is_leader_loaded = false;  ///< the leader's rows are here
  bool has_begun = false;         ///< all rows are at their places
  bool is_ending = false;         ///< the next checkpoint is the last
  bool is_ended = false;          ///< that is written
  /// What they wait for.
  std::string why = "the tables wait for their servers";
  TimePoint retry_at = {};                ///< not before; what failed is tried again
  TimePoint refreshed = {};               ///< when all were asked last
  std::vector<TableHolder> holders = {};  ///< by server of the route; empty: it is not known yet
  std::uint64_t seen = 0;                 ///< changes on the others
  std::uint64_t losses = 0;               ///< servers that were lost so far
  Event changed{executor};                ///< notified by `notify`
  std::uint64_t changes = 0;

  /// Something changed on which a wait or the next step depends.
  void notify();
  /// Wait until there were more changes than these, or until that time. False: cancelled.
  Task<bool> next_change(std::uint64_t after, TimePoint limit);

  std::optional<std::size_t> index_of(const std::string& server) const;
  /// fails  unavailable: it is not one of them
  Result<std::size_t> place_of(const std::string& server) const;
  /// It has buckets.
  bool owns(std::size_t which) const;
  /// It has or had rows, so clients wait for it.
  bool is_wanted(std::size_t which) const { return owns(which) || holders[which].has_held; }

  Task<Result<transport::Reply>> ask(std::size_t which, proto::TablesKind kind,
                                     std::vector<std::byte> head = {});
  /// On the blocking thread.
  Result<transport::Reply> ask_blocking(const HolderSession& shard, proto::TablesKind kind,
                                        std::vector<std::byte> head, Bytes payload = {});
  /// What so many clients have pushed there; on the blocking thread.
  Result<std::vector<PushWindows::Entry>> fetch_pushes(const HolderSession& shard,
                                                       std::uint32_t clients);

  /// What the tables wait for before they serve.
  void explain(std::string reason);
  /// Try again after a second, since this failed.
  void postpone(const std::string& what, const Error& error);
  void lost(TableHolder& holder);
  void take_report(TableHolder& holder, proto::TablesReport report);
  /// Ask all servers for the state of their tables.
  Task<void> refresh();
  /// Add what they reported last.
  void add_to(std::vector<TableView>& views) const;
  /// As RowsJournal::requires_checkpoint, of the others.
  bool journal_wants_checkpoint(std::uint64_t bytes) const;

 private:
  void show_elsewhere(const proto::TablesReport& before, const proto::TablesReport& now);
};

}  // namespace centroid::server
