#include "server/service/rows_changes.h"

#include <algorithm>

#include "common/base/log.h"

namespace centroid::server {

using proto::TablesKind;

bool RowsChanges::holds(const std::string& server) const {
  return servers_.index_of(server) || std::ranges::find(released_, server) != released_.end();
}

/// Servers that came while tables are in use stand in the route, with no bucket at first.
Task<bool> RowsChanges::welcome() {
  const auto is_new = [this](const Link& link) {
    return !link->is_draining && !holds(link->name) && !kept_.is_frozen();
  };
  const auto& present = shards_.present();
  if (std::ranges::none_of(present, [&](const auto& one) { return is_new(one.second); }))
    co_return true;
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  proto::Route route = rows_.moves().route();
  for (const auto& [name, link] : shards_.present()) {
    if (!is_new(link)) continue;
    Holder holder;
    holder.name = name;
    holder.gone_since = clock_.now();
    holders_.push_back(std::move(holder));
    proto::RouteServer server;
    server.name = name;
    server.endpoint = link->endpoint;
    route.servers.push_back(std::move(server));
    ++route.version;
    ++seen_;  // a checkpoint is to name it
    log::info("rows.server_added", {{"server", name}, {"servers", holders_.size()}});
  }
  const Status told = rows_.moves().set_route(std::move(route), 0);
  moves_.resume();
  if (!told.ok()) hooks_.fail(told.error());
  co_return told.ok();
}

/// What clients have pushed to a server, and what it counted, is the leader's from now on.
Task<Status> RowsChanges::fetch_all_pushes(std::size_t which) {
  const Link link = holders_[which].link;
  const auto kind = static_cast<proto::ServersKind>(TablesKind::kRowsFreeze);
  auto head = proto::encode(proto::RowsFreeze());
  const auto reply = co_await shards_.ask(link, kind, std::move(head));
  if (!reply.ok()) co_return reply.error();
  CENTROID_CO_ASSIGN(const auto frozen, proto::decode<proto::RowsFrozen>(reply->head));
  auto fetch = [this, link, clients = frozen.clients] {
    return std::make_shared<Result<PushedRows>>(servers_.fetch_pushes(link, clients));
  };
  const auto pushed = co_await run_on(blocking_, std::move(fetch));
  if (!pushed->ok()) co_return pushed->error();
  auto thaw = proto::encode(proto::RowsThaw());
  CENTROID_CO_TRY(co_await servers_.ask(which, TablesKind::kRowsThaw, std::move(thaw)));
  rows_.load_pushes(pushed->value().clients);
  for (std::size_t i = 0; i < std::min(frozen.tables.size(), rows_.store().size()); ++i) {
    const proto::FrozenTable& table = frozen.tables[i];
    RowCounters counted;
    counted.pulled = table.pulled, counted.pushed = table.pushed;
    counted.admitted = table.admitted, counted.held_back = table.held_back;
    counted.evicted = table.evicted, counted.expired = table.expired;
    counted.duplicates = table.duplicates;
    rows_.store().add_counters(i, counted);
  }
  co_return Status();
}

/// A server that is drained and has no bucket any more, or one that came and went before it had
/// one, leaves the route. False: look again.
Task<bool> RowsChanges::let_go() {
  const auto goes = [this](std::size_t i) {
    const Holder& holder = holders_[i];
    const bool may = holder.is_here() ? holder.link->is_draining && holder.state == State::kServing
                                      : !holder.has_held && shards_.find(holder.name) == nullptr;
    return may && !servers_.owns(i);
  };
  std::size_t which = 0;
  for (std::size_t i = 1; i < holders_.size(); ++i)
    if (goes(i)) which = i;
  if (which == 0 || kept_.is_frozen()) co_return true;
  const bool is_quiet = co_await moves_.pause();
  if (!is_quiet) co_return false;
  // What was on its way to it when it was asked to go has arrived meanwhile; or it has gone.
  const bool may_go = !kept_.is_frozen() && goes(which);
  if (!may_go) {
    moves_.resume();
    co_return true;
  }
  moves_.set_moving(true);
  const std::string name = holders_[which].name;
  Status fetched;
  if (holders_[which].is_here()) fetched = co_await fetch_all_pushes(which);
  if (fetched.ok()) {
    servers_.take_report(holders_[which], {});
    proto::Route route = rows_.moves().route();
    holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(which));
    route.servers.erase(route.servers.begin() + static_cast<std::ptrdiff_t>(which));
    for (std::uint16_t& owner : route.owners)
      owner = static_cast<std::uint16_t>(owner - (owner > which));
    ++route.version;
    fetched = rows_.moves().set_route(std::move(route), 0);
    if (!fetched.ok()) hooks_.fail(fetched.error());
    ++seen_;  // a checkpoint is not to name it
    released_.push_back(name);
    log::info("rows.server_released", {{"server", name}, {"servers", holders_.size()}});
  }
  moves_.set_moving(false);
  moves_.resume();  // not before: a step knows its servers by their places
  if (!fetched.ok())
    context_.put_off("server '" + name + "' cannot be let go yet", fetched.error());
  co_return fetched.ok();
}

/// Where journals are kept the newest checkpoint is to name those who have rows, and nobody else.
/// False: it could not be written.
Task<bool> RowsChanges::owe_checkpoint() {
  const bool is_new = std::ranges::any_of(holders_, [](const Holder& holder) {
    return holder.state == State::kServing && !holder.is_named;
  });
  if (!released_.empty() || is_new) {
    if (is_ending_) co_return true;  // the last one is coming
    const std::vector<std::string> released = released_;
    if (options_.keeps_journal) {
      ++seen_;  // the newest may have been made before it was ready
      const Status written = co_await hooks_.write_checkpoint();
      if (!written.ok()) {
        context_.put_off("no checkpoint could be written for servers that came or went",
                         written.error());
        log::warn("rows.checkpoint_owed", {{"why", written.error()}});
        co_return false;
      }
    } else {
      for (Holder& holder : holders_) holder.is_named = true;
    }
    released_.clear();
    for (const std::string& server : released) hooks_.released(server);
  }
  co_return true;
}

}  // namespace centroid::server
