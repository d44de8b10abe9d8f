#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/async/task.h"
#include "common/base/clock.h"
#include "common/proto/tables.h"
#include "server/shard/shard_group.h"
#include "server/tables/rows_service.h"

namespace centroid::server {

/// Settings of tables on several servers.
struct RowsOptions {
  std::string leader, tables, journal_dir;
  std::size_t servers = 1;  ///< to wait for, the leader included
  bool keeps_journal = false;
  std::chrono::milliseconds journal_sync{}, lease{};
};

/// What tables on several servers want of the job's server.
struct RowsHooks {
  std::function<Task<Status>()> start_journal;  ///< of the leader's rows
  std::function<Task<Status>()> write_checkpoint;
  std::function<void(Error)> fail;                          ///< there is no way to go on
  std::function<void(const std::string& server)> released;  ///< no rows lie there any more
};

/// One of the servers of the route; the first, the leader, has no link.
struct RowsHolder {
  using Link = std::shared_ptr<ShardGroup::Link>;
  enum class State : std::uint8_t { kAbsent, kLoaded, kServing };

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

  bool is_here() const { return link && !link->is_gone(); }
};

/// The state of tables on several servers, and what their parts need to work. Of one thread.
struct RowsContext {
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
  std::vector<RowsHolder> holders = {};  ///< by server of the route; empty: it is not known yet
  std::uint64_t seen = 0;                ///< changes on the others
  std::uint64_t losses = 0;

  /// Look again after a while, for this has failed.
  void put_off(const std::string& what, const Error& error) {
    again = clock.now() + std::chrono::seconds(1);
    why = what + ": " + error.to_string();
    if (!is_begun) rows.hold(why);
  }
};

/// What every part knows of the context, by the names under which the parts use it.
class RowsPart {
 protected:
  using Link = RowsHolder::Link;
  using Holder = RowsHolder;
  using State = RowsHolder::State;

  explicit RowsPart(RowsContext& c)
      : executor_(c.executor),
        blocking_(c.blocking),
        clock_(c.clock),
        rows_(c.rows),
        shards_(c.shards),
        options_(c.options),
        hooks_(c.hooks),
        is_mine_loaded_(c.is_mine_loaded),
        is_begun_(c.is_begun),
        is_ending_(c.is_ending),
        is_ended_(c.is_ended),
        why_(c.why),
        holders_(c.holders),
        seen_(c.seen),
        losses_(c.losses) {}
  RowsPart(const RowsPart&) = delete;
  RowsPart& operator=(const RowsPart&) = delete;
  ~RowsPart() = default;

  const Executor &executor_, &blocking_;
  const Clock& clock_;
  RowsService& rows_;
  ShardGroup& shards_;
  const RowsOptions& options_;
  const RowsHooks& hooks_;
  bool &is_mine_loaded_, &is_begun_, &is_ending_, &is_ended_;
  std::string& why_;
  std::vector<RowsHolder>& holders_;
  std::uint64_t &seen_, &losses_;
};

}  // namespace centroid::server
