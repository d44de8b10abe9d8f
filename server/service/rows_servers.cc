#include "server/service/rows_servers.h"

#include <algorithm>

#include "common/base/log.h"
#include "server/service/waits.h"

namespace centroid::server {

using proto::TablesKind;

RowsServers::RowsServers(Executor executor, Executor blocking, const Clock& clock,
                         RowsService& rows, ShardGroup& shards, RowsOptions options,
                         RowsHooks hooks)
    : group_{std::move(executor), std::move(blocking), clock, rows, shards,
             std::move(options),  std::move(hooks)},
      moves_(group_),
      loader_(group_),
      kept_(group_, moves_, loader_),
      since_(clock.now()) {
  group_.rows.hold(group_.why);
}

Task<void> RowsServers::run() {
  while (!group_.is_ended) {
    co_await look();
    const bool goes_on = co_await sleep_until(group_.clock.now() + kSlowPoll);
    if (!goes_on) co_return;
  }
}

/// One look at who is here, and what follows from it.
Task<void> RowsServers::look() {
  if (group_.clock.now() < group_.again || group_.is_ended || !choose()) co_return;
  if (group_.is_begun && !group_.is_ending) {
    const bool is_settled = co_await welcome();
    if (!is_settled) co_return;
    const bool is_lighter = co_await let_go();
    if (!is_lighter) co_return;
  }
  std::string missing;
  std::vector<std::size_t> which = find_absent(missing);
  if (!group_.is_begun && !missing.empty()) {  // all at once: the checkpoint is read once
    group_.why = "the tables wait for server " + missing + ", on which rows lay";
    group_.rows.hold(group_.why);
    co_return;
  }
  if (!which.empty()) {
    const bool are_brought = co_await bring(std::move(which));
    if (!are_brought) co_return;
  }
  const bool is_complete = std::ranges::all_of(
      group_.holders, [](const RowsHolder& one) { return one.state != RowsState::kAbsent; });
  if (!group_.is_begun && is_complete) {
    const Status begun = co_await begin();
    if (!begun.ok()) {
      group_.put_off("the tables wait for their first checkpoint", begun.error());
      co_return;
    }
  }
  if (!group_.is_begun) co_return;
  const bool all_serve = co_await serve_loaded();
  if (!all_serve) co_return;
  const bool is_up_to_date = co_await require_checkpoint();
  if (!is_up_to_date) co_return;
  if (group_.clock.now() - group_.refreshed >= group_.options.lease / 4) co_await group_.refresh();
}

/// Who has no rows yet and may be given them. `missing`: the names of those who are away.
std::vector<std::size_t> RowsServers::find_absent(std::string& missing) {
  std::vector<std::size_t> which;
  if (!group_.is_mine_loaded) which.push_back(0);
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    RowsHolder& holder = group_.holders[i];
    const RowsLink present = group_.shards.find(holder.name);
    if (holder.link && holder.link != present) group_.lost(holder);
    holder.link = present;
    if (present) holder.max_payload = present->session->peer().limits.max_payload_bytes;
    if (!present) missing += (missing.empty() ? "'" : ", '") + holder.name + "'";
    if (present && holder.state == RowsState::kAbsent) which.push_back(i);
  }
  return which;
}

Task<bool> RowsServers::bring(std::vector<std::size_t> which) {
  if (!group_.is_begun && group_.again == TimePoint()) {
    group_.why = "the tables are being loaded";
    group_.rows.hold(group_.why);
  }
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  const Status brought = co_await loader_.bring(std::move(which), saved_, *run_id_);
  moves_.resume();
  if (!brought.ok()) group_.put_off("the tables cannot be loaded yet", brought.error());
  co_return brought.ok();
}

/// Tell every server that has loaded its rows to serve them. False: the server is stopping.
Task<bool> RowsServers::serve_loaded() {
  const auto is_loaded = [](const RowsHolder& one) { return one.state == RowsState::kLoaded; };
  if (std::ranges::none_of(group_.holders, is_loaded)) co_return true;
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    if (!is_loaded(group_.holders[i])) continue;
    auto route = proto::encode(group_.rows.moves().route());
    const auto served = co_await group_.ask(i, TablesKind::kServe, std::move(route));
    if (served.ok() && is_loaded(group_.holders[i])) group_.holders[i].state = RowsState::kServing;
  }
  moves_.resume();
  co_return true;
}

bool RowsServers::holds(const std::string& server) const {
  return group_.index_of(server) || std::ranges::find(released_, server) != released_.end();
}

/// Servers that came while tables are in use stand in the route, with no bucket at first.
Task<bool> RowsServers::welcome() {
  const auto is_new = [this](const RowsLink& link) {
    return !link->is_draining && !holds(link->name) && !kept_.is_frozen();
  };
  const auto& present = group_.shards.present();
  if (std::ranges::none_of(present, [&](const auto& one) { return is_new(one.second); }))
    co_return true;
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  proto::Route route = group_.rows.moves().route();
  for (const auto& [name, link] : group_.shards.present()) {
    if (!is_new(link)) continue;
    RowsHolder holder;
    holder.name = name;
    holder.gone_since = group_.clock.now();
    group_.holders.push_back(std::move(holder));
    proto::RouteServer server;
    server.name = name;
    server.endpoint = link->endpoint;
    route.servers.push_back(std::move(server));
    ++route.version;
    ++group_.seen;  // a checkpoint is to name it
    log::info("rows.server_added", {{"server", name}, {"servers", group_.holders.size()}});
  }
  const Status told = group_.rows.moves().set_route(std::move(route), 0);
  moves_.resume();
  if (!told.ok()) group_.hooks.fail(told.error());
  co_return told.ok();
}

/// What clients have pushed to a server, and what it counted, is the leader's from now on.
Task<Status> RowsServers::fetch_all_pushes(std::size_t which) {
  const RowsLink link = group_.holders[which].link;
  auto head = proto::encode(proto::RowsFreeze());
  CENTROID_CO_ASSIGN(const auto reply,
                     co_await group_.ask(which, TablesKind::kRowsFreeze, std::move(head)));
  CENTROID_CO_ASSIGN(const auto frozen, proto::decode<proto::RowsFrozen>(reply.head));
  auto fetch = [this, link, clients = frozen.clients] {
    return std::make_shared<Result<std::vector<PushWindows::Entry>>>(
        group_.fetch_pushes(link, clients));
  };
  const auto pushed = co_await run_on(group_.blocking, std::move(fetch));
  if (!pushed->ok()) co_return pushed->error();
  auto thaw = proto::encode(proto::RowsThaw());
  CENTROID_CO_TRY(co_await group_.ask(which, TablesKind::kRowsThaw, std::move(thaw)));
  group_.rows.load_pushes(pushed->value());
  for (std::size_t i = 0; i < std::min(frozen.tables.size(), group_.rows.store().size()); ++i)
    group_.rows.store().add_counters(i, frozen.tables[i]);
  co_return Status();
}

/// A server that is drained and has no bucket any more, or one that came and went before it had
/// one, leaves the route. False: look again.
Task<bool> RowsServers::let_go() {
  const auto goes = [this](std::size_t i) {
    const RowsHolder& holder = group_.holders[i];
    const bool may = holder.is_here()
                         ? holder.link->is_draining && holder.state == RowsState::kServing
                         : !holder.has_held && group_.shards.find(holder.name) == nullptr;
    return may && !group_.owns(i);
  };
  std::size_t which = 0;
  for (std::size_t i = 1; i < group_.holders.size(); ++i)
    if (goes(i)) which = i;
  if (which == 0 || kept_.is_frozen()) co_return true;
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  // Rows that were under way to it have arrived by now, or it is gone.
  const bool may_go = !kept_.is_frozen() && goes(which);
  if (!may_go) {
    moves_.resume();
    co_return true;
  }
  moves_.set_moving(true);
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
    ++group_.seen;  // a checkpoint is not to name it
    released_.push_back(name);
    log::info("rows.server_released", {{"server", name}, {"servers", group_.holders.size()}});
  }
  moves_.set_moving(false);
  moves_.resume();  // not before: a step knows its servers by their places
  if (!fetched.ok()) group_.put_off("server '" + name + "' cannot be let go yet", fetched.error());
  co_return fetched.ok();
}

/// Where journals are kept the newest checkpoint is to name those who have rows, and nobody else.
/// False: it could not be written.
Task<bool> RowsServers::require_checkpoint() {
  const bool is_new = std::ranges::any_of(group_.holders, [](const RowsHolder& holder) {
    return holder.state == RowsState::kServing && !holder.is_named;
  });
  if (!released_.empty() || is_new) {
    if (group_.is_ending) co_return true;  // the last one is coming
    const std::vector<std::string> released = released_;
    if (group_.options.writes_journal) {
      ++group_.seen;  // the newest may have been made before it was ready
      const Status written = co_await group_.hooks.write_checkpoint();
      if (!written.ok()) {
        group_.put_off("no checkpoint could be written for servers that came or went",
                       written.error());
        log::warn("rows.checkpoint_postponed", {{"why", written.error()}});
        co_return false;
      }
    } else {
      for (RowsHolder& holder : group_.holders) holder.is_named = true;
    }
    released_.clear();
    for (const std::string& server : released) group_.hooks.released(server);
  }
  co_return true;
}

Task<void> RowsServers::await_all(std::chrono::milliseconds limit) {
  const TimePoint end = group_.clock.now() + limit;
  const auto missing = [this] {
    std::string names;
    for (std::size_t i = 1; i < group_.holders.size(); ++i)
      if ((group_.holders[i].state != RowsState::kServing || !group_.holders[i].is_here()) &&
          group_.is_wanted(i))
        names += (names.empty() ? "'" : ", '") + group_.holders[i].name + "'";
    return names;
  };
  const std::string first = missing();
  if (!group_.is_begun || first.empty()) co_return;
  log::warn("rows.servers_awaited",
            {{"servers", first}, {"why", "the last checkpoint is to have their rows"}});
  awaits_all_ = true;
  while (!missing().empty() && group_.clock.now() < end) {
    const bool goes_on = co_await sleep_until(std::min(end, group_.clock.now() + kSlowPoll));
    if (!goes_on) break;
  }
  awaits_all_ = false;
  if (const std::string names = missing(); !names.empty())
    log::error("rows.servers_timed_out",
               {{"servers", names}, {"waited_ms", limit.count()}, {"setting", "servers_wait"}});
}

bool RowsServers::awaits(const std::string& server) const {
  const auto which = group_.index_of(server);
  return awaits_all_ && which && !group_.holders[*which].is_here();
}

bool RowsServers::serves(const std::string& server) const {
  return !group_.is_ending && !group_.is_ended &&
         (group_.holders.empty() || group_.index_of(server));
}

void RowsServers::waits(std::vector<WaitView>& views) const {
  const auto seconds = [&](TimePoint since) {
    return std::chrono::duration<double>(group_.clock.now() - since).count();
  };
  if (!group_.is_begun)
    views.push_back(
        {.who = "tables", .for_whom = "servers", .what = group_.why, .seconds = seconds(since_)});
  for (std::size_t i = 1; group_.is_begun && !group_.is_ended && i < group_.holders.size(); ++i) {
    const RowsHolder& holder = group_.holders[i];
    for (const proto::RowsWait& wait : holder.report.waits)
      views.push_back({.who = wait.who,
                       .for_whom = wait.for_whom,
                       .what = "on server '" + holder.name + "': " + wait.what,
                       .seconds = wait.seconds});
    if (holder.state == RowsState::kServing && holder.is_here()) continue;
    if (!group_.is_wanted(i)) continue;  // nobody waits for it
    views.push_back({.who = awaits_all_ ? "the last checkpoint of the tables" : "clients of rows",
                     .for_whom = "servers",
                     .what = "server '" + holder.name + "' " +
                             (holder.is_here() ? "loads its rows and replays its journal"
                                               : "is gone with its rows: start it again"),
                     .seconds = seconds(holder.gone_since)});
  }
  if (!group_.is_begun || group_.is_ended || group_.is_ending) return;
  for (const std::string& server : released_)
    views.push_back({.who = "server '" + server + "'",
                     .for_whom = "checkpoint",
                     .what = "no rows lie there any more; it may go when a checkpoint is written "
                             "that does not need it",
                     .seconds = seconds(moves_.since())});
  if (const auto move = moves_.next_move())
    views.push_back({.who = "buckets of tables",
                     .for_whom = "servers",
                     .what = std::to_string(move->buckets.size()) + " are to move from server '" +
                             move->from + "' to '" + move->to + "'" +
                             (moves_.trouble().empty() ? "" : ": " + moves_.trouble()),
                     .seconds = seconds(moves_.since())});
}

std::string RowsServers::unsettled() const {
  if (!group_.is_begun) return group_.why;
  for (std::size_t i = 1; i < group_.holders.size(); ++i)
    if ((group_.holders[i].state == RowsState::kAbsent || !group_.holders[i].is_here()) &&
        group_.is_wanted(i))
      return "server '" + group_.holders[i].name + "' is gone with its rows";
  return {};
}

}  // namespace centroid::server
