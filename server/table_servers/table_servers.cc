#include "server/table_servers/table_servers.h"

#include <algorithm>

#include "common/base/log.h"

namespace centroid::server {

using proto::TablesKind;

TableServers::TableServers(Executor executor, Executor blocking, const Clock& clock,
                           RowsService& rows, ShardGroup& shards, TableOptions options,
                           TableHooks hooks)
    : group_{std::move(executor), std::move(blocking), clock, rows, shards,
             std::move(options),  std::move(hooks)},
      mover_(group_),
      loader_(group_),
      checkpoint_(group_, mover_, loader_),
      since_(clock.now()) {
  group_.rows.hold(group_.why);
}

Task<void> TableServers::run() {
  while (!group_.is_ended) {
    const std::uint64_t seen = group_.changes;
    co_await advance();
    const TimePoint limit = group_.clock.now() + group_.options.lease / 4;  // to refresh
    const bool has_next = co_await group_.next_change(seen, limit);
    if (!has_next) co_return;
    const bool goes_on = co_await sleep_until(group_.retry_at);  // lint-ok: a retry
    if (!goes_on) co_return;
  }
}

/// One look at the servers that are present, and the steps that follow from it.
Task<void> TableServers::advance() {
  if (group_.clock.now() < group_.retry_at || group_.is_ended || !choose()) co_return;
  if (group_.has_begun && !group_.is_ending) {
    const bool is_settled = co_await add_servers();
    if (!is_settled) co_return;
    const bool is_lighter = co_await release_drained();
    if (!is_lighter) co_return;
  }
  std::string missing;
  std::vector<std::size_t> which = find_absent(missing);
  if (!group_.has_begun && !missing.empty()) {  // all at once: the checkpoint is read once
    group_.explain("the tables wait for server " + missing + ", which has rows");
    co_return;
  }
  if (!which.empty()) {
    const bool are_loaded = co_await load_onto(std::move(which));
    if (!are_loaded) co_return;
  }
  const bool is_complete = std::ranges::all_of(
      group_.holders, [](const TableHolder& one) { return one.state != HolderState::kAbsent; });
  if (!group_.has_begun && is_complete) {
    const Status begun = co_await begin();
    if (!begun.ok()) {
      group_.postpone("the tables wait for their first checkpoint", begun.error());
      co_return;
    }
  }
  if (!group_.has_begun) co_return;
  const bool all_serve = co_await serve_loaded();
  if (!all_serve) co_return;
  const bool is_up_to_date = co_await require_checkpoint();
  if (!is_up_to_date) co_return;
  if (group_.clock.now() - group_.refreshed >= group_.options.lease / 4) co_await group_.refresh();
}

/// Servers that have no rows yet and can get them. `missing`: the names of those that are away.
std::vector<std::size_t> TableServers::find_absent(std::string& missing) {
  std::vector<std::size_t> which;
  if (!group_.is_leader_loaded) which.push_back(0);
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    TableHolder& holder = group_.holders[i];
    const HolderSession present = group_.shards.find(holder.name);
    if (holder.shard && holder.shard != present) group_.lost(holder);
    holder.shard = present;
    if (present) holder.max_payload = present->session->peer().limits.max_payload_bytes;
    if (!present) missing += (missing.empty() ? "'" : ", '") + holder.name + "'";
    if (present && holder.state == HolderState::kAbsent) which.push_back(i);
  }
  return which;
}

Task<bool> TableServers::load_onto(std::vector<std::size_t> which) {
  if (!group_.has_begun && group_.retry_at == TimePoint())
    group_.explain("the tables are being loaded");
  const bool is_quiet = co_await mover_.pause();
  if (!is_quiet) co_return false;
  const Status loaded = co_await loader_.load_onto(std::move(which), saved_, *run_id_);
  mover_.resume();
  if (!loaded.ok()) group_.postpone("the tables cannot be loaded yet", loaded.error());
  co_return loaded.ok();
}

/// Tell every server that has loaded its rows to serve them. False: the server is stopping.
Task<bool> TableServers::serve_loaded() {
  const auto is_loaded = [](const TableHolder& one) { return one.state == HolderState::kLoaded; };
  if (std::ranges::none_of(group_.holders, is_loaded)) co_return true;
  const bool is_quiet = co_await mover_.pause();
  if (!is_quiet) co_return false;
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    if (!is_loaded(group_.holders[i])) continue;
    auto route = proto::encode(group_.rows.moves().route());
    const auto served = co_await group_.ask(i, TablesKind::kServe, std::move(route));
    if (!served.ok()) group_.postpone("a server does not serve its tables yet", served.error());
    if (served.ok() && is_loaded(group_.holders[i]))
      group_.holders[i].state = HolderState::kServing;
  }
  mover_.resume();
  co_return true;
}

bool TableServers::holds(const std::string& server) const {
  return group_.index_of(server) || std::ranges::find(released_, server) != released_.end();
}

/// Servers that joined while tables are in use are in the route, with no bucket at first.
Task<bool> TableServers::add_servers() {
  const auto is_new = [this](const HolderSession& shard) {
    return !shard->is_draining && !holds(shard->name) && !checkpoint_.is_frozen();
  };
  const auto& present = group_.shards.present();
  if (std::ranges::none_of(present, [&](const auto& one) { return is_new(one.second); }))
    co_return true;
  const bool is_quiet = co_await mover_.pause();
  if (!is_quiet) co_return false;
  proto::Route route = group_.rows.moves().route();
  for (const auto& [name, shard] : group_.shards.present()) {
    if (!is_new(shard)) continue;
    TableHolder holder;
    holder.name = name;
    holder.gone_since = group_.clock.now();
    group_.holders.push_back(std::move(holder));
    proto::RouteServer server;
    server.name = name;
    server.endpoint = shard->endpoint;
    route.servers.push_back(std::move(server));
    ++route.version;
    ++group_.seen;  // the next checkpoint names it
    log::info("rows.server_added", {{"server", name}, {"servers", group_.holders.size()}});
  }
  const Status told = group_.rows.moves().set_route(std::move(route), 0);
  mover_.resume();
  if (!told.ok()) group_.hooks.fail(told.error());
  co_return told.ok();
}

/// The pushes that a server knows, and its counters, become the leader's.
Task<Status> TableServers::fetch_all_pushes(std::size_t which) {
  const HolderSession shard = group_.holders[which].shard;
  auto head = proto::encode(proto::RowsFreeze());
  CENTROID_CO_ASSIGN(const auto reply,
                     co_await group_.ask(which, TablesKind::kRowsFreeze, std::move(head)));
  CENTROID_CO_ASSIGN(const auto frozen, proto::decode<proto::RowsFrozen>(reply.head));
  auto fetch = [this, shard, clients = frozen.clients] {
    return group_.fetch_pushes(shard, clients);
  };
  CENTROID_CO_ASSIGN(const auto pushed, co_await run_on(group_.blocking, std::move(fetch)));
  auto thaw = proto::encode(proto::RowsThaw());
  CENTROID_CO_TRY(co_await group_.ask(which, TablesKind::kRowsThaw, std::move(thaw)));
  group_.rows.load_pushes(pushed);
  for (std::size_t i = 0; i < std::min(frozen.tables.size(), group_.rows.store().size()); ++i)
    group_.rows.store().add_counters(i, frozen.tables[i]);
  co_return Status();
}

/// A drained server without buckets, or one that came and went before it had one, leaves the
/// route. False: call `advance` again.
Task<bool> TableServers::release_drained() {
  const auto goes = [this](std::size_t i) {
    const TableHolder& holder = group_.holders[i];
    const bool may = holder.is_here()
                         ? holder.shard->is_draining && holder.state == HolderState::kServing
                         : !holder.has_held && group_.shards.find(holder.name) == nullptr;
    return may && !group_.owns(i);
  };
  std::size_t which = 0;
  for (std::size_t i = 1; i < group_.holders.size(); ++i)
    if (goes(i)) which = i;
  if (which == 0 || checkpoint_.is_frozen()) co_return true;
  const bool is_quiet = co_await mover_.pause();
  if (!is_quiet) co_return false;
  // Rows on their way to it have arrived by now, or it is gone.
  const bool may_go = !checkpoint_.is_frozen() && goes(which);
  if (!may_go) {
    mover_.resume();
    co_return true;
  }
  mover_.set_moving(true);
  const std::string name = group_.holders[which].name;
  Status fetched;
  if (group_.holders[which].is_here()) fetched = co_await fetch_all_pushes(which);
  if (fetched.ok()) {
    group_.take_report(group_.holders[which], {});
    proto::Route route = group_.rows.moves().route();
    group_.holders.erase(group_.holders.begin() + static_cast<std::ptrdiff_t>(which));
    route.servers.erase(route.servers.begin() + static_cast<std::ptrdiff_t>(which));
    for (std::uint16_t& owner : route.owners)
      owner = static_cast<std::uint16_t>(owner - (owner > which));
    ++route.version;
    fetched = group_.rows.moves().set_route(std::move(route), 0);
    if (!fetched.ok()) group_.hooks.fail(fetched.error());
    ++group_.seen;  // the next checkpoint does not name it
    released_.push_back(name);
    log::info("rows.server_released", {{"server", name}, {"servers", group_.holders.size()}});
  }
  mover_.set_moving(false);
  mover_.resume();  // not before: a step has indices of servers
  if (!fetched.ok()) group_.postpone("server '" + name + "' cannot be let go yet", fetched.error());
  co_return fetched.ok();
}

/// With journals, the newest checkpoint names the servers that have rows, and no others. False: it
/// could not be written.
Task<bool> TableServers::require_checkpoint() {
  const bool is_new = std::ranges::any_of(group_.holders, [](const TableHolder& holder) {
    return holder.state == HolderState::kServing && !holder.is_named;
  });
  if (!released_.empty() || is_new) {
    if (group_.is_ending) co_return true;  // the last one follows
    const std::vector<std::string> released = released_;
    if (group_.options.writes_journal) {
      ++group_.seen;  // the newest may be older than its rows
      const Status written = co_await group_.hooks.write_checkpoint();
      if (!written.ok()) {
        group_.postpone("no checkpoint could be written for servers that came or went",
                        written.error());
        log::warn("rows.checkpoint_postponed", {{"why", written.error()}});
        co_return false;
      }
    } else {
      for (TableHolder& holder : group_.holders) holder.is_named = true;
      group_.notify();
    }
    released_.clear();
    for (const std::string& server : released) group_.hooks.released(server);
  }
  co_return true;
}

/// Names of the servers with rows that do not serve them; empty: none.
std::string TableServers::missing_servers() const {
  std::string names;
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    const TableHolder& holder = group_.holders[i];
    const bool serves = holder.state == HolderState::kServing && holder.is_here();
    if (!serves && group_.is_wanted(i)) names += (names.empty() ? "'" : ", '") + holder.name + "'";
  }
  return names;
}

void TableServers::end() {
  group_.is_ending = true;
  group_.notify();
}

Task<void> TableServers::await_all(std::chrono::milliseconds limit) {
  const std::string first = missing_servers();
  if (!group_.has_begun || first.empty()) co_return;
  log::warn("rows.servers_awaited",
            {{"servers", first}, {"why", "the last checkpoint needs their rows"}});
  awaits_all_ = true;
  const auto are_here = [this] { return missing_servers().empty(); };
  (void)co_await until(group_.changed, are_here, group_.clock.now() + limit);
  awaits_all_ = false;
  if (const std::string names = missing_servers(); !names.empty())
    log::error("rows.servers_timed_out",
               {{"servers", names}, {"waited_ms", limit.count()}, {"setting", "servers_wait"}});
}

bool TableServers::awaits(const std::string& server) const {
  const auto which = group_.index_of(server);
  return awaits_all_ && which && !group_.holders[*which].is_here();
}

bool TableServers::serves(const std::string& server) const {
  return !group_.is_ending && !group_.is_ended &&
         (group_.holders.empty() || group_.index_of(server));
}

void TableServers::waits(std::vector<WaitView>& views) const {
  const auto seconds = [&](TimePoint since) {
    return std::chrono::duration<double>(group_.clock.now() - since).count();
  };
  if (!group_.has_begun)
    views.push_back({.waiter = "tables",
                     .waits_for = "servers",
                     .what = group_.why,
                     .seconds = seconds(since_)});
  for (std::size_t i = 1; group_.has_begun && !group_.is_ended && i < group_.holders.size(); ++i) {
    const TableHolder& holder = group_.holders[i];
    for (const proto::RowsWait& wait : holder.report.waits)
      views.push_back({.waiter = wait.waiter,
                       .waits_for = wait.waits_for,
                       .what = "on server '" + holder.name + "': " + wait.what,
                       .seconds = wait.seconds});
    if (holder.state == HolderState::kServing && holder.is_here()) continue;
    if (!group_.is_wanted(i)) continue;  // no client waits for it
    views.push_back(
        {.waiter = awaits_all_ ? "the last checkpoint of the tables" : "clients of rows",
         .waits_for = "servers",
         .what = "server '" + holder.name + "' " +
                 (holder.is_here() ? "loads its rows and replays its journal"
                                   : "is gone with its rows: start it retry_at"),
         .seconds = seconds(holder.gone_since)});
  }
  if (!group_.has_begun || group_.is_ended || group_.is_ending) return;
  for (const std::string& server : released_)
    views.push_back({.waiter = "server '" + server + "'",
                     .waits_for = "checkpoint",
                     .what = "it has no rows any more, and may go when a checkpoint is written "
                             "that does not need it",
                     .seconds = seconds(mover_.settled_at())});
  if (const auto move = mover_.next_move())
    views.push_back({.waiter = "buckets of tables",
                     .waits_for = "servers",
                     .what = std::to_string(move->buckets.size()) + " will move from server '" +
                             move->from + "' to '" + move->to + "'" +
                             (mover_.problem().empty() ? "" : ": " + mover_.problem()),
                     .seconds = seconds(mover_.settled_at())});
}

std::string TableServers::why_unsettled() const {
  if (!group_.has_begun) return group_.why;
  for (std::size_t i = 1; i < group_.holders.size(); ++i)
    if ((group_.holders[i].state == HolderState::kAbsent || !group_.holders[i].is_here()) &&
        group_.is_wanted(i))
      return "server '" + group_.holders[i].name + "' is gone with its rows";
  return {};
}

}  // namespace centroid::server
