#include "server/table_servers/table_checkpoint.h"

#include <algorithm>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "server/shard/placement.h"
#include "server/tables/row_blocks.h"
#include "server/tables/row_files.h"

namespace centroid::server {

using proto::TablesKind;

namespace fs = std::filesystem;

Task<Result<std::shared_ptr<RowsSnapshot>>> TableCheckpoint::freeze() {
  const bool is_quiet = co_await mover_.pause();
  if (!is_quiet) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  is_frozen_ = true;
  for (TableHolder& holder : group_.holders) holder.frozen_shard.reset();
  if (!group_.has_begun) co_return Error(ErrorCode::kUnavailable, group_.why);
  for (std::size_t i = 0; i < group_.holders.size(); ++i) {
    TableHolder& holder = group_.holders[i];
    holder.is_saved = i == 0 || holder.state != HolderState::kAbsent;
    if (!holder.is_saved && group_.is_wanted(i))
      co_return Error(ErrorCode::kUnavailable,
                      "server '" + holder.name + "' is gone with its rows");
  }
  frozen_route_ = group_.rows.moves().route();
  frozen_is_last_ = group_.is_ending;  // `end` may be called before it is written
  proto::RowsFreeze how;
  how.is_last = frozen_is_last_;
  if (frozen_is_last_) group_.rows.hold("the job is over");
  const auto head = proto::encode(how);
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    if (!group_.holders[i].is_saved) continue;
    group_.holders[i].frozen_shard = group_.holders[i].shard;
    const auto reply = co_await group_.ask(i, TablesKind::kRowsFreeze, head);
    if (!reply.ok()) co_return reply.error();
    CENTROID_CO_ASSIGN(group_.holders[i].frozen, proto::decode<proto::RowsFrozen>(reply->head));
    if (group_.holders[i].frozen.tables.size() != group_.rows.store().size())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + group_.holders[i].name + "' froze " +
                          std::to_string(group_.holders[i].frozen.tables.size()) + " tables, not " +
                          std::to_string(group_.rows.store().size()));
    if (group_.holders[i].frozen.changes != group_.holders[i].report.changes) ++group_.seen;
    group_.holders[i].report.changes = group_.holders[i].frozen.changes;
    fault::point("tables.server_frozen");
  }
  frozen_ = changes();
  co_return group_.rows.begin_snapshot();
}

Result<bool> TableCheckpoint::fetch_rows(const HolderSession& shard, std::size_t table,
                                         RowTable::Block& block) {
  proto::RowsRead wanted;
  wanted.table = static_cast<std::uint32_t>(table);
  CENTROID_ASSIGN(const auto reply,
                  group_.ask_blocking(shard, TablesKind::kRowsRead, proto::encode(wanted)));
  CENTROID_ASSIGN(const auto head, proto::decode<proto::RowsBlock>(reply.head));
  if (head.rows == 0) return false;
  CENTROID_ASSIGN(block, rows_of(head, group_.rows.store().spec(table), reply.payload));
  return true;
}

std::vector<CheckpointPart> TableCheckpoint::parts(std::shared_ptr<RowsSnapshot> leaders) {
  struct Part {
    HolderSession shard;
    proto::RowsFrozen frozen;
    PushedRows pushed;  ///< without the clients
  };
  // The first is the leader, whose rows are `leaders`.
  auto all = std::make_shared<std::vector<Part>>();
  for (std::size_t i = 0; i < group_.holders.size(); ++i) {
    const TableHolder& holder = group_.holders[i];
    if (!holder.is_saved) continue;
    Part& one = all->emplace_back(Part{holder.frozen_shard, holder.frozen, {}});
    one.pushed.journal = i == 0 ? leaders->journal() : holder.frozen.journal;
    one.pushed.server = holder.name;
    one.pushed.is_followed = group_.options.writes_journal && !frozen_is_last_;
    one.pushed.route = frozen_route_.version;
    one.pushed.buckets = to_ranges(frozen_route_.owners, static_cast<std::uint16_t>(i));
  }
  std::vector<CheckpointPart> parts;
  for (std::size_t table = 0; table < group_.rows.store().size(); ++table) {
    auto write = [this, leaders, all, table](const fs::path& path) -> Result<FileRecord> {
      RowTable::State sum = leaders->states()[table];
      sum.rows_shape = sum.candidates_shape = {};  // of no one table
      for (std::size_t i = 1; i < all->size(); ++i) {
        const proto::RowsFrozen& frozen = (*all)[i].frozen;
        const proto::FrozenTable& more = frozen.tables[table];
        sum.rows += more.rows, sum.candidates += more.waiting;
        sum.now = std::max(sum.now, frozen.clock);
        add_counters(more, sum.counters);
      }
      std::size_t from = 0;
      const auto read = [&](RowTable::Block& block) -> Result<bool> {
        for (; from < all->size(); ++from) {
          auto found = from == 0 ? leaders->read(table, block)
                                 : fetch_rows((*all)[from].shard, table, block);
          if (!found.ok() || *found) return found;
        }
        return false;
      };
      return write_rows(path, group_.rows.store().spec(table), sum, read);
    };
    parts.push_back({rows_file_name(group_.rows.store().spec(table).name), std::move(write)});
  }
  for (std::size_t i = 0; i < all->size(); ++i) {
    auto write = [this, leaders, all, i](const fs::path& path) -> Result<FileRecord> {
      const Part& one = (*all)[i];
      PushedRows pushed = one.pushed;
      if (i == 0) {
        pushed.clients = leaders->pushed().clients;
      } else {
        CENTROID_ASSIGN(pushed.clients, group_.fetch_pushes(one.shard, one.frozen.clients));
      }
      return write_pushes(path, pushed);
    };
    parts.push_back({i == 0 ? kPushesFile : pushes_file_name(i), std::move(write)});
  }
  return parts;
}

Task<void> TableCheckpoint::thaw(bool is_written) {
  if (is_written) {
    saved_ = frozen_;
    group_.is_ended = group_.is_ended || frozen_is_last_;
    loader_.expect_saved();
    for (TableHolder& holder : group_.holders) holder.is_named = holder.is_saved;
  }
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    const HolderSession shard = std::exchange(group_.holders[i].frozen_shard, nullptr);
    if (!shard || shard->is_gone()) continue;
    proto::RowsThaw thaw;
    if (is_written) thaw.journal = group_.holders[i].frozen.journal;
    const auto kind = static_cast<proto::ServersKind>(TablesKind::kRowsThaw);
    auto head = proto::encode(thaw);
    (void)co_await group_.shards.ask(shard, kind, std::move(head));
  }
  if (std::exchange(is_frozen_, false)) mover_.resume();  // notifies
}

bool TableCheckpoint::is_needed() const {
  if (!group_.has_begun) return false;  // journals still have it
  // The last one stops pushes on all servers. One that is gone without a journal has nothing.
  const bool may_hold = group_.options.writes_journal ||
                        std::ranges::none_of(group_.holders, [](const TableHolder& holder) {
                          return holder.state == HolderState::kAbsent;
                        });
  return (group_.is_ending && !group_.is_ended && may_hold) || changes() != saved_;
}

}  // namespace centroid::server
