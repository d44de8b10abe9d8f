#include "server/table_servers/table_group.h"

#include <algorithm>
#include <utility>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

using proto::ServersKind;
using proto::TablesKind;

std::optional<std::size_t> TableGroup::index_of(const std::string& server) const {
  const auto found = std::ranges::find(holders, server, &TableHolder::name);
  if (found == holders.end()) return std::nullopt;
  return static_cast<std::size_t>(found - holders.begin());
}

Result<std::size_t> TableGroup::place_of(const std::string& server) const {
  if (const auto which = index_of(server)) return *which;
  return Error(ErrorCode::kUnavailable, "server '" + server + "' is gone");
}

bool TableGroup::owns(std::size_t which) const {
  const auto& owners = rows.moves().route().owners;
  return std::ranges::find(owners, which) != owners.end();
}

Task<bool> TableGroup::next_change(std::uint64_t after, TimePoint limit) {
  const auto has_changed = [this, after] { return changes != after; };
  const bool is_changed = co_await until(changed, has_changed, limit);
  co_return is_changed || clock.now() >= limit;
}

void TableGroup::notify() {
  ++changes;
  changed.notify_all();
  hooks.changed();
}

void TableGroup::explain(std::string reason) {
  if (!has_begun) rows.hold(reason);
  if (why == reason) return;
  why = std::move(reason);
  notify();
}

void TableGroup::postpone(const std::string& what, const Error& error) {
  retry_at = clock.now() + std::chrono::seconds(1);
  explain(what + ": " + error.to_string());
}

void TableGroup::lost(TableHolder& holder) {
  if (holder.state == HolderState::kServing)
    log::warn("rows.server_lost",
              {{"server", holder.name}, {"action", "requests for its rows wait for it"}});
  ++losses;
  take_report(holder, {});
  holder.state = HolderState::kAbsent;
  holder.is_full = false;
  holder.shard.reset();
  holder.gone_since = clock.now();
}

Task<Result<transport::Reply>> TableGroup::ask(std::size_t which, TablesKind kind,
                                               std::vector<std::byte> head) {
  const HolderSession shard = holders[which].shard;
  if (!shard)
    co_return Error(ErrorCode::kUnavailable, "server '" + holders[which].name + "' is gone");
  co_return co_await shards.ask(shard, static_cast<ServersKind>(kind), std::move(head));
}

Result<transport::Reply> TableGroup::ask_blocking(const HolderSession& shard, TablesKind kind,
                                                  std::vector<std::byte> head, Bytes payload) {
  auto asked = shards.ask(shard, static_cast<ServersKind>(kind), std::move(head), payload);
  return wait_on(executor, std::move(asked));
}

Result<std::vector<PushWindows::Entry>> TableGroup::fetch_pushes(const HolderSession& shard,
                                                                 std::uint32_t clients) {
  std::vector<PushWindows::Entry> pushed;
  while (pushed.size() < clients) {
    proto::PushesBlock wanted;
    wanted.first = static_cast<std::uint32_t>(pushed.size());
    CENTROID_ASSIGN(const auto reply,
                    ask_blocking(shard, TablesKind::kPushesRead, proto::encode(wanted)));
    CENTROID_ASSIGN(const auto head, proto::decode<proto::PushesBlock>(reply.head));
    CENTROID_ASSIGN(const auto some, pushes_of(head, reply.payload));
    if (some.empty())
      return Error(ErrorCode::kAborted,
                   "server '" + shard->name + "' has fewer clients than it reported");
    pushed.insert(pushed.end(), some.begin(), some.end());
  }
  return pushed;
}

Task<void> TableGroup::refresh() {
  refreshed = clock.now();
  for (std::size_t i = 1; i < holders.size(); ++i) {
    const HolderSession shard = holders[i].shard;
    if (holders[i].state == HolderState::kAbsent || !shard) continue;
    const auto reply = co_await ask(i, TablesKind::kTablesReport);
    const auto at =
        std::ranges::find(holders, shard, &TableHolder::shard);  // they may have changed
    if (!reply.ok() || at == holders.end()) continue;
    auto report = proto::decode<proto::TablesReport>(reply->head);
    if (report.ok() && report->is_loaded) take_report(*at, std::move(report).value());
  }
}

void TableGroup::take_report(TableHolder& holder, proto::TablesReport report) {
  if (report.is_loaded && report.changes != holder.report.changes) ++seen;
  const proto::TablesReport before = std::exchange(holder.report, std::move(report));
  show_elsewhere(before, holder.report);
}

/// What another server's tables have now, compared with its report before, for the metrics.
void TableGroup::show_elsewhere(const proto::TablesReport& before, const proto::TablesReport& now) {
  for (std::size_t table = 0; table < rows.store().size(); ++table) {
    proto::TableReport total, more;
    const auto of = [&](const proto::TablesReport& report) {
      return table < report.tables.size() ? report.tables[table] : proto::TableReport();
    };
    if (!before.tables.empty()) {  // else they are of before it came
      more = of(now);
      const proto::TableReport was = of(before);
      for_counters(more, was, [](std::uint64_t& grown, std::uint64_t from) {
        grown -= std::min(grown, from);
      });
    }
    for (const TableHolder& holder : holders) {
      const proto::TableReport part = of(holder.report);
      total.rows += part.rows;
      total.waiting += part.waiting;
      total.bytes += part.bytes;
    }
    rows.store().show_elsewhere(table, total, more);
  }
}

void TableGroup::add_to(std::vector<TableView>& views) const {
  for (const TableHolder& holder : holders)
    for (std::size_t i = 0; i < std::min(views.size(), holder.report.tables.size()); ++i) {
      const proto::TableReport& more = holder.report.tables[i];
      TableView& view = views[i];
      view.rows += more.rows, view.waiting += more.waiting;
      view.bytes += more.bytes, view.payload_bytes += more.payload_bytes;
      add_counters(more, view);
      PartView& part = view.servers.emplace_back();
      part.server = holder.name;
      part.bytes = more.bytes;
      part.rows = more.rows;
    }
}

bool TableGroup::journal_wants_checkpoint(std::uint64_t bytes) const {
  return std::ranges::any_of(holders, [&](const TableHolder& holder) {
    const bool is_long = bytes != 0 && holder.report.journal_bytes > bytes;
    return holder.state == HolderState::kServing && (holder.report.is_broken || is_long);
  });
}

}  // namespace centroid::server
