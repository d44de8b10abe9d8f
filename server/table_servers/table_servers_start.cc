#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/checkpoint/rows_journal.h"
#include "server/shard/placement.h"
#include "server/table_servers/table_servers.h"

namespace centroid::server {

using proto::TablesKind;

Task<Result<bool>> TableServers::prepare(const CheckpointDirectory& checkpoints, bool resumes,
                                         std::string& run_id) {
  run_id_ = &run_id;
  loader_.find_saved(checkpoints, resumes);
  CENTROID_CO_ASSIGN(saved_, co_await loader_.find_newest());
  const bool was_spread = saved_ && saved_->journals.size() > 1;
  if (resumes && !was_spread) {
    auto look = [folder = group_.options.journal_dir] { return rows_journal::verify(folder); };
    CENTROID_CO_ASSIGN(const auto journal, co_await run_on(group_.blocking, std::move(look)));
    if (journal.pushes > 0) {  // of all keys
      log::warn("rows.distribution_failed",
                {{"why", "the journal has pushes after the checkpoint of one server"},
                 {"action", "all rows stay on the leader until the job is ended and resumed"}});
      group_.rows.hold("");
      co_return false;
    }
  }
  if (!saved_ || !saved_->is_followed) co_return true;
  std::vector<std::string> others;
  for (const auto& [name, journal] : saved_->journals)
    if (!name.empty()) others.push_back(name);
  if (others.size() + 1 != group_.options.servers)
    log::warn("rows.servers_awaited",
              {{"servers", others.size() + 1},
               {"why",
                "their journals have pushes after the checkpoint; end the job to continue "
                "with another number"}});
  CENTROID_CO_TRY(place(std::move(others), &*saved_));
  std::vector<bool> mine(group_.holders.size());
  mine[0] = true;
  auto load = [this, mine = std::move(mine)] { return loader_.load(*saved_, mine); };
  CENTROID_CO_TRY(co_await run_on(group_.blocking, std::move(load)));
  group_.rows.end_load(saved_->clock, saved_->journals[""], saved_->entry.path.filename().string());
  CENTROID_CO_TRY(co_await loader_.replay_here(run_id));
  group_.is_leader_loaded = true;
  group_.holders[0].state = HolderState::kServing;
  co_return true;
}

/// The leader, then the others in the order of names: with the same servers the same keys.
Status TableServers::place(std::vector<std::string> others, const SavedTables* saved) {
  std::ranges::sort(others);
  proto::Route route;
  route.version = 1;
  route.owners = place_buckets(proto::kRowBuckets, others.size() + 1);
  group_.holders.clear();
  group_.holders.push_back({.name = group_.options.leader});
  for (std::string& name : others)
    group_.holders.push_back({.name = std::move(name), .gone_since = group_.clock.now()});
  for (const TableHolder& holder : group_.holders) {
    proto::RouteServer server;
    server.name = holder.name;
    if (const HolderSession shard = group_.shards.find(holder.name))
      server.endpoint = shard->endpoint;
    route.servers.push_back(std::move(server));
  }
  if (saved != nullptr && saved->route != 0) {
    route.version = saved->route;
    route.owners = loader_.owners_of(*saved);
    if (std::ranges::find(route.owners, kNobody) != route.owners.end())
      return Error(ErrorCode::kDataLoss,
                   "checkpoint " + saved->entry.path.string() +
                       " does not name the servers of all buckets of its tables");
  }
  for (std::size_t i = 0; i < group_.holders.size(); ++i) {
    group_.holders[i].has_held = std::ranges::find(route.owners, i) != route.owners.end();
    group_.holders[i].is_named = saved != nullptr;
  }
  return group_.rows.moves().set_route(std::move(route), 0);
}

/// Place the rows, once the servers of the start are here. False: not yet.
bool TableServers::choose() {
  if (!group_.holders.empty()) return true;
  const std::size_t here = group_.shards.present().size() + 1;
  if (here < group_.options.servers) {
    group_.explain("the tables wait for their servers: " + std::to_string(here) + " of " +
                   std::to_string(group_.options.servers) + " are here (servers)");
    return false;
  }
  std::vector<std::string> others;
  for (const auto& [name, shard] : group_.shards.present()) others.push_back(name);
  const Status placed = place(std::move(others), nullptr);
  if (!placed.ok()) group_.hooks.fail(placed.error());
  return placed.ok();
}

/// All rows are at their places.
Task<Status> TableServers::begin() {
  group_.has_begun = true;  // checkpoints of the tables may begin
  const bool is_known = saved_ && saved_->is_followed;
  if (is_known) {
    const Status settled = co_await resolve_claims();
    if (!settled.ok()) group_.has_begun = false;
    CENTROID_CO_TRY(settled);
  }
  if (group_.options.writes_journal != is_known) {  // else the newest names the journals
    const Status written = co_await group_.hooks.write_checkpoint();
    if (!written.ok()) {
      group_.has_begun = false;
      log::error("checkpoint.failed", {{"why", written.error()}, {"when", "before the tables"}});
      co_return written;
    }
  }
  const Status started = co_await group_.hooks.start_journal();
  if (!started.ok()) {
    group_.hooks.fail(started.error());
    co_return started;
  }
  group_.rows.moves().journal_claims();
  saved_.reset();
  loader_.expect_saved();
  if (!group_.is_ending) group_.rows.hold("");
  log::info("rows.distributed",
            {{"servers", group_.holders.size()}, {"route", group_.rows.moves().route().version}});
  group_.notify();
  co_return Status();
}

/// After a restart of all: who claims a bucket by the newest route has its rows.
Task<Status> TableServers::resolve_claims() {
  std::vector<std::vector<std::uint64_t>> claims{group_.rows.moves().claims()};
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    CENTROID_CO_ASSIGN(const auto reply, co_await group_.ask(i, TablesKind::kBucketsClaims));
    std::vector<std::uint64_t> mine(reply.payload.size() / sizeof(std::uint64_t));
    if (!mine.empty()) std::memcpy(mine.data(), reply.payload.data(), reply.payload.size());
    claims.push_back(std::move(mine));
  }
  proto::Route route = group_.rows.moves().route();
  std::uint64_t newest = route.version;
  for (std::size_t bucket = 0; bucket < proto::kRowBuckets; ++bucket) {
    std::uint64_t best = 0;
    for (std::size_t i = 0; i < claims.size(); ++i) {
      if (bucket >= claims[i].size() || claims[i][bucket] <= best) continue;
      best = claims[i][bucket];
      route.owners[bucket] = static_cast<std::uint16_t>(i);
    }
    newest = std::max(newest, best);
    if (best != 0) continue;
    const Error nobody(ErrorCode::kDataLoss,
                       "no server has bucket " + std::to_string(bucket) +
                           " of the tables: the journals end before it was moved, or one of them "
                           "is not of this run");
    group_.hooks.fail(nobody);
    co_return nobody;
  }
  route.version = newest + 1;
  for (std::size_t i = 0; i < group_.holders.size(); ++i)
    group_.holders[i].has_held =
        group_.holders[i].has_held || std::ranges::find(route.owners, i) != route.owners.end();
  const Status settled = group_.rows.moves().settle(route);
  if (!settled.ok()) group_.hooks.fail(settled.error());
  co_return settled;
}

}  // namespace centroid::server
