#include "server/service/rows_start.h"

#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "common/checkpoint/rows_journal.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::TablesKind;

Task<Result<bool>> RowsStart::prepare(bool resumes, std::string& run_id) {
  CENTROID_CO_ASSIGN(saved_, co_await loader_.find_newest());
  const bool was_spread = saved_ && saved_->journals.size() > 1;
  if (resumes && !was_spread) {
    auto look = [folder = options_.journal_dir] {
      return std::make_shared<Result<rows_journal::Report>>(rows_journal::verify(folder));
    };
    const auto journal = co_await run_on(blocking_, std::move(look));
    if (!journal->ok()) co_return journal->error();
    if ((*journal)->pushes > 0) {  // of all keys
      log::warn("rows.not_spread",
                {{"why", "the journal has pushes behind the checkpoint of one server"},
                 {"action", "all rows stay on the leader until the job is ended and resumed"}});
      rows_.hold("");
      co_return false;
    }
  }
  if (!saved_ || !saved_->is_followed) co_return true;
  std::vector<std::string> others;
  for (const auto& [name, journal] : saved_->journals)
    if (!name.empty()) others.push_back(name);
  if (others.size() + 1 != options_.servers)
    log::warn("rows.servers_awaited",
              {{"servers", others.size() + 1},
               {"why",
                "their journals have pushes behind the checkpoint; end the job to go on "
                "with another number"}});
  CENTROID_CO_TRY(place(std::move(others), &*saved_));
  std::vector<bool> mine(holders_.size());
  mine[0] = true;
  CENTROID_CO_TRY(co_await loader_.load_here(*saved_, std::move(mine)));
  rows_.end_load(saved_->clock, saved_->journals[""], saved_->entry.path.filename().string());
  CENTROID_CO_TRY(co_await loader_.replay_here(run_id));
  is_mine_loaded_ = true;
  holders_[0].state = State::kServing;
  co_return true;
}

/// The leader, then the others in the order of names: with the same servers the same keys.
Status RowsStart::place(std::vector<std::string> others, const SavedRows* saved) {
  std::ranges::sort(others);
  proto::Route route;
  route.version = 1;
  route.owners = place_buckets(proto::kRowBuckets, others.size() + 1);
  holders_.clear();
  holders_.push_back({.name = options_.leader});
  for (std::string& name : others)
    holders_.push_back({.name = std::move(name), .gone_since = clock_.now()});
  for (const Holder& holder : holders_) {
    proto::RouteServer server;
    server.name = holder.name;
    if (const Link link = shards_.find(holder.name)) server.endpoint = link->endpoint;
    route.servers.push_back(std::move(server));
  }
  if (saved != nullptr && saved->route != 0) {
    route.version = saved->route;
    route.owners = loader_.owners_of(*saved);
    if (std::ranges::find(route.owners, kNobody) != route.owners.end())
      return Error(ErrorCode::kDataLoss, "checkpoint " + saved->entry.path.string() +
                                             " does not say where all buckets of its tables lay");
  }
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    holders_[i].has_held = std::ranges::find(route.owners, i) != route.owners.end();
    holders_[i].is_named = saved != nullptr;
  }
  return rows_.moves().set_route(std::move(route), 0);
}

/// Where the rows are to lie, once the servers of the start are here.
bool RowsStart::choose() {
  if (!holders_.empty()) return true;
  const std::size_t here = shards_.present().size() + 1;
  if (here < options_.servers) {
    why_ = "the tables wait for their servers: " + std::to_string(here) + " of " +
           std::to_string(options_.servers) + " are here (servers)";
    rows_.hold(why_);
    return false;
  }
  std::vector<std::string> others;
  for (const auto& [name, link] : shards_.present()) others.push_back(name);
  const Status placed = place(std::move(others), nullptr);
  if (!placed.ok()) hooks_.fail(placed.error());
  return placed.ok();
}

/// All rows are where they are to be.
Task<Status> RowsStart::begin() {
  is_begun_ = true;  // a checkpoint may be made of them
  const bool is_known = saved_ && saved_->is_followed;
  if (is_known) {
    const Status settled = co_await settle_claims();
    if (!settled.ok()) is_begun_ = false;
    CENTROID_CO_TRY(settled);
  }
  if (options_.keeps_journal != is_known) {  // else the newest says what is in journals
    const Status written = co_await hooks_.write_checkpoint();
    if (!written.ok()) {
      is_begun_ = false;
      log::error("checkpoint.failed", {{"why", written.error()}, {"when", "before the tables"}});
      co_return written;
    }
  }
  const Status started = co_await hooks_.start_journal();
  if (!started.ok()) {
    hooks_.fail(started.error());
    co_return started;
  }
  rows_.moves().journal_claims();
  saved_.reset();
  loader_.expect_saved();
  if (!is_ending_) rows_.hold("");
  log::info("rows.spread", {{"servers", holders_.size()}, {"route", rows_.moves().route().version}});
  co_return Status();
}

/// After a restart of all: who claims a bucket by the newest route has its rows.
Task<Status> RowsStart::settle_claims() {
  std::vector<std::vector<std::uint64_t>> claims{rows_.moves().claims()};
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    const Link link = holders_[i].link;
    if (!link)
      co_return Error(ErrorCode::kUnavailable, "server '" + holders_[i].name + "' is gone");
    const auto kind = static_cast<proto::ServersKind>(TablesKind::kBucketsClaims);
    const auto reply = co_await shards_.ask(link, kind, std::vector<std::byte>());
    if (!reply.ok()) co_return reply.error();
    std::vector<std::uint64_t> mine(reply->payload.size() / sizeof(std::uint64_t));
    if (!mine.empty()) std::memcpy(mine.data(), reply->payload.data(), reply->payload.size());
    claims.push_back(std::move(mine));
  }
  proto::Route route = rows_.moves().route();
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
    hooks_.fail(nobody);
    co_return nobody;
  }
  route.version = newest + 1;
  for (std::size_t i = 0; i < holders_.size(); ++i)
    holders_[i].has_held =
        holders_[i].has_held || std::ranges::find(route.owners, i) != route.owners.end();
  const Status settled = rows_.moves().settle(route);
  if (!settled.ok()) hooks_.fail(settled.error());
  co_return settled;
}

}  // namespace centroid::server
