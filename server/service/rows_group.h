#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/clock.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/shard/shard_group.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Settings of tables on several servers.
struct RowsOptions {
  std::string leader, tables, journal_dir;
  std::size_t servers = 1;  ///< to wait for, the leader included
  bool writes_journal = false;
  std::chrono::milliseconds journal_sync{}, lease{};
};

/// What tables on several servers want of the job's server.
struct RowsHooks {
  std::function<Task<Status>()> start_journal;  ///< of the leader's rows
  std::function<Task<Status>()> write_checkpoint;
  std::function<void(Error)> fail;                          ///< there is no way to go on
  std::function<void(const std::string& server)> released;  ///< no rows lie there any more
};

enum class RowsState : std::uint8_t { kAbsent, kLoaded, kServing };
using RowsLink = std::shared_ptr<ShardGroup::Link>;

/// One of the servers of the route; the first, the leader, has no link.
struct RowsHolder {
  std::string name;
  RowsLink link = nullptr;
  std::uint64_t max_payload = 0;  ///< of the link, for the blocking thread
  RowsState state = RowsState::kAbsent;
  proto::TablesReport report = {};
  proto::RowsFrozen frozen = {};  ///< of the last checkpoint
  TimePoint gone_since = {};
  bool is_named = false;  ///< by the newest checkpoint, so that its journal counts
  bool has_held = false;  ///< buckets
  bool is_full = false;   ///< it has no memory for more
  bool is_kept = false;   ///< it is in the checkpoint that is being written
  /// Of the session in which it keeps rows for that one; a later one knows nothing of them.
  RowsLink kept_link = nullptr;

  bool is_here() const { return link && !link->is_gone(); }
};

/// The servers on which rows lie: what is known of them, and questions to them. Its fields are the
/// state that the parts of RowsServers share. Of one thread, but for what asks from the blocking
/// one.
struct RowsGroup {
  const Executor executor, blocking;
  const Clock& clock;
  RowsService& rows;
  ShardGroup& shards;
  const RowsOptions options;
  const RowsHooks hooks;
  bool is_mine_loaded = false;  ///< the leader's rows are here
  bool is_begun = false;        ///< all rows are where they are to be
  bool is_ending = false;       ///< the next checkpoint is the last
  bool is_ended = false;        ///< that is written
  /// What they wait for.
  std::string why = "the tables wait for their servers";
  TimePoint again = {};                  ///< not before: what has failed is tried again
  TimePoint refreshed = {};              ///< when all were asked last
  std::vector<RowsHolder> holders = {};  ///< by server of the route; empty: it is not known yet
  std::uint64_t seen = 0;                ///< changes on the others
  std::uint64_t losses = 0;              ///< servers that were lost so far

  std::optional<std::size_t> index_of(const std::string& server) const;
  /// fails  unavailable: it is not one of them
  Result<std::size_t> place_of(const std::string& server) const;
  /// Buckets lie there.
  bool owns(std::size_t which) const;
  /// Rows are or were on this server, so clients wait for it.
  bool is_wanted(std::size_t which) const { return owns(which) || holders[which].has_held; }

  Task<Result<transport::Reply>> ask(std::size_t which, proto::TablesKind kind,
                                     std::vector<std::byte> head = {});
  /// On the blocking thread.
  Result<transport::Reply> ask_blocking(const RowsLink& link, proto::TablesKind kind,
                                        std::vector<std::byte> head, Bytes payload = {});
  /// What so many clients have pushed there; on the blocking thread.
  Result<std::vector<PushWindows::Entry>> fetch_pushes(const RowsLink& link, std::uint32_t clients);

  /// Look again after a while, for this has failed.
  void put_off(const std::string& what, const Error& error);
  void lost(RowsHolder& holder);
  void take_report(RowsHolder& holder, proto::TablesReport report);
  /// Ask all servers how their tables are.
  Task<void> refresh();
  /// Add what they said last.
  void add_to(std::vector<TableView>& views) const;
  /// As RowsJournal::requires_checkpoint, of the others.
  bool journal_wants_checkpoint(std::uint64_t bytes) const;

 private:
  void tell_elsewhere(const proto::TablesReport& before, const proto::TablesReport& now);
};

}  // namespace centroid::server
