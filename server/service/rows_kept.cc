#include "server/service/rows_kept.h"

#include <algorithm>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "server/shard/placement.h"
#include "server/tables/row_blocks.h"
#include "server/tables/row_files.h"

namespace centroid::server {

using proto::TablesKind;

namespace fs = std::filesystem;

Task<Result<std::shared_ptr<RowsSnapshot>>> RowsKept::freeze() {
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  is_frozen_ = true;
  for (RowsHolder& holder : group_.holders) holder.kept_link.reset();
  if (!group_.is_begun) co_return Error(ErrorCode::kUnavailable, group_.why);
  for (std::size_t i = 0; i < group_.holders.size(); ++i) {
    RowsHolder& holder = group_.holders[i];
    holder.is_kept = i == 0 || holder.state != RowsState::kAbsent;
    if (!holder.is_kept && group_.is_wanted(i))
      co_return Error(ErrorCode::kUnavailable,
                      "server '" + holder.name + "' is gone with its rows");
  }
  kept_route_ = group_.rows.moves().route();
  kept_is_last_ = group_.is_ending;  // `end` may come before it is written
  proto::RowsFreeze how;
  how.is_last = kept_is_last_;
  if (kept_is_last_) group_.rows.hold("the job is over");
  const auto head = proto::encode(how);
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    if (!group_.holders[i].is_kept) continue;
    group_.holders[i].kept_link = group_.holders[i].link;
    const auto kept = co_await group_.ask(i, TablesKind::kRowsFreeze, head);
    if (!kept.ok()) co_return kept.error();
    CENTROID_CO_ASSIGN(group_.holders[i].frozen, proto::decode<proto::RowsFrozen>(kept->head));
    if (group_.holders[i].frozen.tables.size() != group_.rows.store().size())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + group_.holders[i].name + "' keeps " +
                          std::to_string(group_.holders[i].frozen.tables.size()) + " tables, not " +
                          std::to_string(group_.rows.store().size()));
    if (group_.holders[i].frozen.changes != group_.holders[i].report.changes) ++group_.seen;
    group_.holders[i].report.changes = group_.holders[i].frozen.changes;
    fault::point("tables.server_frozen");
  }
  kept_ = group_.seen;
  mine_kept_ = group_.rows.store().changes();
  co_return group_.rows.begin_snapshot();
}

Result<bool> RowsKept::fetch_rows(const RowsLink& link, std::size_t table, RowTable::Block& block) {
  proto::RowsRead wanted;
  wanted.table = static_cast<std::uint32_t>(table);
  CENTROID_ASSIGN(const auto reply,
                  group_.ask_blocking(link, TablesKind::kRowsRead, proto::encode(wanted)));
  CENTROID_ASSIGN(const auto head, proto::decode<proto::RowsBlock>(reply.head));
  if (head.rows == 0) return false;
  CENTROID_ASSIGN(block, rows_of(head, group_.rows.store().spec(table), reply.payload));
  return true;
}

std::vector<CheckpointPart> RowsKept::parts(std::shared_ptr<RowsSnapshot> mine) {
  struct Kept {
    RowsLink link;
    proto::RowsFrozen frozen;
    PushedRows pushed;  ///< but for the clients
  };
  // The first is the leader, whose rows are `mine`.
  auto all = std::make_shared<std::vector<Kept>>();
  for (std::size_t i = 0; i < group_.holders.size(); ++i) {
    const RowsHolder& holder = group_.holders[i];
    if (!holder.is_kept) continue;
    Kept& one = all->emplace_back(Kept{holder.kept_link, holder.frozen, {}});
    one.pushed.journal = i == 0 ? mine->journal() : holder.frozen.journal;
    one.pushed.server = holder.name;
    one.pushed.is_followed = group_.options.writes_journal && !kept_is_last_;
    one.pushed.route = kept_route_.version;
    one.pushed.buckets = to_ranges(kept_route_.owners, static_cast<std::uint16_t>(i));
  }
  std::vector<CheckpointPart> parts;
  for (std::size_t table = 0; table < group_.rows.store().size(); ++table) {
    auto write = [this, mine, all, table](const fs::path& path) -> Result<FileRecord> {
      RowTable::State sum = mine->states()[table];
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
          auto found =
              from == 0 ? mine->read(table, block) : fetch_rows((*all)[from].link, table, block);
          if (!found.ok() || *found) return found;
        }
        return false;
      };
      return write_rows(path, group_.rows.store().spec(table), sum, read);
    };
    parts.push_back({rows_file_name(group_.rows.store().spec(table).name), std::move(write)});
  }
  for (std::size_t i = 0; i < all->size(); ++i) {
    auto write = [this, mine, all, i](const fs::path& path) -> Result<FileRecord> {
      const Kept& one = (*all)[i];
      PushedRows pushed = one.pushed;
      if (i == 0) {
        pushed.clients = mine->pushed().clients;
      } else {
        CENTROID_ASSIGN(pushed.clients, group_.fetch_pushes(one.link, one.frozen.clients));
      }
      return write_pushes(path, pushed);
    };
    parts.push_back({i == 0 ? kPushesFile : pushes_file_name(i), std::move(write)});
  }
  return parts;
}

Task<void> RowsKept::thaw(bool is_written) {
  if (is_written) {
    checkpointed_ = kept_;
    mine_checkpointed_ = mine_kept_;
    group_.is_ended = group_.is_ended || kept_is_last_;
    loader_.expect_saved();
    for (RowsHolder& holder : group_.holders) holder.is_named = holder.is_kept;
  }
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    const RowsLink link = std::exchange(group_.holders[i].kept_link, nullptr);
    if (!link || link->is_gone()) continue;
    proto::RowsThaw thaw;
    if (is_written) thaw.journal = group_.holders[i].frozen.journal;
    const auto kind = static_cast<proto::ServersKind>(TablesKind::kRowsThaw);
    auto head = proto::encode(thaw);
    (void)co_await group_.shards.ask(link, kind, std::move(head));
  }
  if (std::exchange(is_frozen_, false)) moves_.resume();
}

bool RowsKept::needs_checkpoint() const {
  if (!group_.is_begun) return false;  // what is in journals stays there
  // The last holds pushes off on all servers; of one that is gone without a journal nothing comes.
  const bool may_hold = group_.options.writes_journal ||
                        std::ranges::none_of(group_.holders, [](const RowsHolder& holder) {
                          return holder.state == RowsState::kAbsent;
                        });
  return (group_.is_ending && !group_.is_ended && may_hold) || group_.seen != checkpointed_ ||
         group_.rows.store().changes() != mine_checkpointed_;
}

}  // namespace centroid::server
