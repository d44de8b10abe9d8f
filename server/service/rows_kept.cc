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
  for (Holder& holder : holders_) holder.kept_link.reset();
  if (!is_begun_) co_return Error(ErrorCode::kUnavailable, why_);
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    Holder& holder = holders_[i];
    holder.is_kept = i == 0 || holder.state != State::kAbsent;
    if (!holder.is_kept && (servers_.owns(i) || holder.has_held))
      co_return Error(ErrorCode::kUnavailable,
                      "server '" + holder.name + "' is gone with its rows");
  }
  kept_route_ = rows_.moves().route();
  kept_is_last_ = is_ending_;  // `end` may come before it is written
  proto::RowsFreeze how;
  how.is_last = kept_is_last_;
  if (kept_is_last_) rows_.hold("the job is over");
  const auto head = proto::encode(how);
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    if (!holders_[i].is_kept) continue;
    const Link link = holders_[i].link;
    if (!link)
      co_return Error(ErrorCode::kUnavailable, "server '" + holders_[i].name + "' is gone");
    holders_[i].kept_link = link;
    const auto kept =
        co_await shards_.ask(link, static_cast<proto::ServersKind>(TablesKind::kRowsFreeze), head);
    if (!kept.ok()) co_return kept.error();
    CENTROID_CO_ASSIGN(holders_[i].frozen, proto::decode<proto::RowsFrozen>(kept->head));
    if (holders_[i].frozen.tables.size() != rows_.store().size())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + holders_[i].name + "' keeps " +
                          std::to_string(holders_[i].frozen.tables.size()) + " tables, not " +
                          std::to_string(rows_.store().size()));
    if (holders_[i].frozen.changes != holders_[i].report.changes) ++seen_;
    holders_[i].report.changes = holders_[i].frozen.changes;
    fault::point("tables.server_frozen");
  }
  kept_ = seen_;
  mine_kept_ = rows_.store().changes();
  co_return rows_.begin_snapshot();
}

Result<bool> RowsKept::fetch_rows(const Link& link, std::size_t table, RowTable::Block& block) {
  proto::RowsRead wanted;
  wanted.table = static_cast<std::uint32_t>(table);
  CENTROID_ASSIGN(const auto reply,
                  servers_.ask_blocking(link, TablesKind::kRowsRead, proto::encode(wanted)));
  CENTROID_ASSIGN(const auto head, proto::decode<proto::RowsBlock>(reply.head));
  if (head.rows == 0) return false;
  CENTROID_ASSIGN(block, rows_of(head, rows_.store().spec(table), reply.payload));
  return true;
}

std::vector<CheckpointPart> RowsKept::parts(std::shared_ptr<RowsSnapshot> mine) {
  struct Kept {
    std::string name;
    Link link;
    proto::RowsFrozen frozen;
    std::string buckets;
  };
  auto others = std::make_shared<std::vector<Kept>>();
  const auto buckets = [this](std::size_t i) {
    return to_ranges(kept_route_.owners, static_cast<std::uint16_t>(i));
  };
  for (std::size_t i = 1; i < holders_.size(); ++i)
    if (holders_[i].is_kept)
      others->push_back({holders_[i].name, holders_[i].kept_link, holders_[i].frozen, buckets(i)});
  std::vector<CheckpointPart> parts;
  for (std::size_t table = 0; table < rows_.store().size(); ++table) {
    auto write = [this, mine, others, table](const fs::path& path) -> Result<FileRecord> {
      RowTable::State all = mine->states()[table];
      all.rows_shape = all.candidates_shape = {};  // of no one table
      for (const Kept& one : *others) {
        const proto::FrozenTable& more = one.frozen.tables[table];
        all.rows += more.rows, all.candidates += more.waiting;
        all.now = std::max(all.now, one.frozen.clock);
        RowCounters& c = all.counters;
        c.pulled += more.pulled, c.pushed += more.pushed, c.admitted += more.admitted;
        c.held_back += more.held_back, c.evicted += more.evicted, c.expired += more.expired;
        c.duplicates += more.duplicates;
      }
      std::size_t from = 0;  // 0: the leader's own
      const auto read = [&](RowTable::Block& block) -> Result<bool> {
        for (; from <= others->size(); ++from) {
          auto found = from == 0 ? mine->read(table, block)
                                 : fetch_rows((*others)[from - 1].link, table, block);
          if (!found.ok() || *found) return found;
        }
        return false;
      };
      return write_rows(path, rows_.store().spec(table), all, read);
    };
    parts.push_back({rows_file_name(rows_.store().spec(table).name), std::move(write)});
  }
  const bool is_followed = options_.keeps_journal && !kept_is_last_;
  const std::uint64_t route = kept_route_.version;
  parts.push_back({kPushesFile, [mine, is_followed, name = options_.leader, route,
                                 buckets = buckets(0)](const fs::path& path) {
                     PushedRows pushed = mine->pushed();
                     pushed.server = name;
                     pushed.is_followed = is_followed;
                     pushed.route = route;
                     pushed.buckets = buckets;
                     return write_pushes(path, pushed);
                   }});
  for (std::size_t i = 0; i < others->size(); ++i) {
    auto write = [this, others, i, is_followed, route](const fs::path& path) -> Result<FileRecord> {
      const Kept& one = (*others)[i];
      CENTROID_ASSIGN(PushedRows pushed, servers_.fetch_pushes(one.link, one.frozen.clients));
      pushed.journal = one.frozen.journal;
      pushed.server = one.name;
      pushed.is_followed = is_followed;
      pushed.route = route;
      pushed.buckets = one.buckets;
      return write_pushes(path, pushed);
    };
    parts.push_back({pushes_file_name(i + 1), std::move(write)});
  }
  return parts;
}

Task<void> RowsKept::thaw(bool is_written) {
  if (is_written) {
    checkpointed_ = kept_;
    mine_checkpointed_ = mine_kept_;
    is_ended_ = is_ended_ || kept_is_last_;
    loader_.expect_saved();
    for (Holder& holder : holders_) holder.is_named = holder.is_kept;
  }
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    const Link link = std::exchange(holders_[i].kept_link, nullptr);
    if (!link || link->is_gone()) continue;
    proto::RowsThaw thaw;
    if (is_written) thaw.journal = holders_[i].frozen.journal;
    const auto kind = static_cast<proto::ServersKind>(TablesKind::kRowsThaw);
    auto head = proto::encode(thaw);
    (void)co_await shards_.ask(link, kind, std::move(head));
  }
  if (std::exchange(is_frozen_, false)) moves_.resume();
}

bool RowsKept::needs_checkpoint() const {
  if (!is_begun_) return false;  // what is in journals stays there
  // The last holds pushes off on all servers; of one that is gone without a journal nothing comes.
  const bool may_hold =
      options_.keeps_journal || std::ranges::none_of(holders_, [](const Holder& holder) {
        return holder.state == State::kAbsent;
      });
  return (is_ending_ && !is_ended_ && may_hold) || seen_ != checkpointed_ ||
         rows_.store().changes() != mine_checkpointed_;
}

}  // namespace centroid::server
