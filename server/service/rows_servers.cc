#include "server/service/rows_servers.h"

#include <algorithm>

#include "common/base/log.h"

namespace centroid::server {

using proto::TablesKind;

namespace {

constexpr std::chrono::milliseconds kLook{20};

}  // namespace

RowsServers::RowsServers(Executor executor, Executor blocking, const Clock& clock,
                         RowsService& rows, ShardGroup& shards, Options options, Hooks hooks)
    : ctx_{std::move(executor), std::move(blocking), clock, rows, shards,
           std::move(options),  std::move(hooks)},
      servers_(ctx_),
      moves_(ctx_, servers_),
      loader_(ctx_, servers_),
      kept_(ctx_, servers_, moves_, loader_),
      start_(ctx_, loader_),
      changes_(ctx_, servers_, moves_, kept_),
      since_(clock.now()) {
  ctx_.rows.hold(ctx_.why);
}

Task<Result<bool>> RowsServers::prepare(const CheckpointDirectory& checkpoints, bool resumes,
                                        std::string& run_id) {
  run_id_ = &run_id;
  loader_.look_in(checkpoints, resumes);
  co_return co_await start_.prepare(resumes, run_id);
}

Task<Status> RowsServers::bring(std::vector<std::size_t> which) {
  RowsBringing bringing(ctx_, servers_, loader_, *run_id_, start_.saved(), std::move(which));
  co_return co_await bringing.run();
}

Task<void> RowsServers::run() {
  while (!ctx_.is_ended) {
    co_await look();
    const bool goes_on = co_await sleep_until(ctx_.clock.now() + kLook);
    if (!goes_on) co_return;
  }
}

/// One look at who is here, and what follows from it.
Task<void> RowsServers::look() {
  if (ctx_.clock.now() < ctx_.again || ctx_.is_ended || !start_.choose()) co_return;
  if (ctx_.is_begun && !ctx_.is_ending) {
    const bool is_settled = co_await changes_.welcome();
    if (!is_settled) co_return;
    const bool is_lighter = co_await changes_.let_go();
    if (!is_lighter) co_return;
  }
  std::vector<std::size_t> which;
  if (!ctx_.is_mine_loaded) which.push_back(0);
  std::string missing;
  for (std::size_t i = 1; i < ctx_.holders.size(); ++i) {
    Holder& holder = ctx_.holders[i];
    const Link present = ctx_.shards.find(holder.name);
    if (holder.link && holder.link != present) servers_.lost(holder);
    holder.link = present;
    if (present) holder.max_payload = present->session->peer().limits.max_payload_bytes;
    if (!present) missing += (missing.empty() ? "'" : ", '") + holder.name + "'";
    if (present && holder.state == State::kAbsent) which.push_back(i);
  }
  if (!ctx_.is_begun && !missing.empty()) {  // all at once: the checkpoint is read once
    ctx_.why = "the tables wait for server " + missing + ", on which rows lay";
    ctx_.rows.hold(ctx_.why);
    co_return;
  }
  if (!which.empty()) {
    if (!ctx_.is_begun && ctx_.again == TimePoint()) {
      ctx_.why = "the tables are being loaded";
      ctx_.rows.hold(ctx_.why);
    }
    const bool is_quiet = co_await moves_.pause();
    if (!is_quiet) co_return;
    const Status brought = co_await bring(std::move(which));
    moves_.resume();
    if (!brought.ok()) {
      ctx_.put_off("the tables cannot be loaded yet", brought.error());
      co_return;
    }
  }
  const bool is_whole = std::ranges::all_of(
      ctx_.holders, [](const Holder& holder) { return holder.state != State::kAbsent; });
  if (!ctx_.is_begun && is_whole) {
    const Status begun = co_await start_.begin();
    if (!begun.ok()) {
      ctx_.put_off("the tables wait for their first checkpoint", begun.error());
      co_return;
    }
  }
  if (!ctx_.is_begun) co_return;
  const bool has_loaded = std::ranges::any_of(
      ctx_.holders, [](const Holder& holder) { return holder.state == State::kLoaded; });
  if (has_loaded) {
    const bool is_quiet = co_await moves_.pause();
    if (!is_quiet) co_return;
    for (std::size_t i = 1; i < ctx_.holders.size(); ++i) {
      if (ctx_.holders[i].state != State::kLoaded) continue;
      auto route = proto::encode(ctx_.rows.moves().route());
      const Status served = co_await servers_.ask(i, TablesKind::kServe, std::move(route));
      if (served.ok() && ctx_.holders[i].state == State::kLoaded)
        ctx_.holders[i].state = State::kServing;
    }
    moves_.resume();
  }
  const bool is_up_to_date = co_await changes_.owe_checkpoint();
  if (!is_up_to_date) co_return;
  if (ctx_.clock.now() - servers_.refreshed() >= ctx_.options.lease / 4)
    co_await servers_.refresh();
}

Task<void> RowsServers::await_all(std::chrono::milliseconds limit) {
  const TimePoint end = ctx_.clock.now() + limit;
  const auto missing = [this] {
    std::string names;
    for (std::size_t i = 1; i < ctx_.holders.size(); ++i)
      if ((ctx_.holders[i].state != State::kServing || !ctx_.holders[i].is_here()) &&
          (servers_.owns(i) || ctx_.holders[i].has_held))
        names += (names.empty() ? "'" : ", '") + ctx_.holders[i].name + "'";
    return names;
  };
  const std::string first = missing();
  if (!ctx_.is_begun || first.empty()) co_return;
  log::warn("rows.servers_awaited",
            {{"servers", first}, {"why", "the last checkpoint is to have their rows"}});
  awaits_all_ = true;
  while (!missing().empty() && ctx_.clock.now() < end) {
    const bool goes_on = co_await sleep_until(std::min(end, ctx_.clock.now() + kLook));
    if (!goes_on) break;
  }
  awaits_all_ = false;
  if (const std::string names = missing(); !names.empty())
    log::error("rows.servers_missing",
               {{"servers", names}, {"waited_ms", limit.count()}, {"setting", "servers_wait"}});
}

bool RowsServers::awaits(const std::string& server) const {
  const auto which = servers_.index_of(server);
  return awaits_all_ && which && !ctx_.holders[*which].is_here();
}

bool RowsServers::serves(const std::string& server) const {
  return !ctx_.is_ending && !ctx_.is_ended && (ctx_.holders.empty() || servers_.index_of(server));
}

void RowsServers::waits(std::vector<WaitView>& views) const {
  const auto seconds = [&](TimePoint since) {
    return std::chrono::duration<double>(ctx_.clock.now() - since).count();
  };
  if (!ctx_.is_begun)
    views.push_back(
        {.who = "tables", .for_whom = "servers", .what = ctx_.why, .seconds = seconds(since_)});
  for (std::size_t i = 1; ctx_.is_begun && !ctx_.is_ended && i < ctx_.holders.size(); ++i) {
    const Holder& holder = ctx_.holders[i];
    for (const proto::RowsWait& wait : holder.report.waits)
      views.push_back({.who = wait.who,
                       .for_whom = wait.for_whom,
                       .what = "on server '" + holder.name + "': " + wait.what,
                       .seconds = wait.seconds});
    if (holder.state == State::kServing && holder.is_here()) continue;
    if (!servers_.owns(i) && !holder.has_held) continue;  // nobody waits for it
    views.push_back({.who = awaits_all_ ? "the last checkpoint of the tables" : "clients of rows",
                     .for_whom = "servers",
                     .what = "server '" + holder.name + "' " +
                             (holder.is_here() ? "loads its rows and replays its journal"
                                               : "is gone with its rows: start it again"),
                     .seconds = seconds(holder.gone_since)});
  }
  if (!ctx_.is_begun || ctx_.is_ended || ctx_.is_ending) return;
  for (const std::string& server : changes_.released())
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
  if (!ctx_.is_begun) return ctx_.why;
  for (std::size_t i = 1; i < ctx_.holders.size(); ++i)
    if ((ctx_.holders[i].state == State::kAbsent || !ctx_.holders[i].is_here()) &&
        (servers_.owns(i) || ctx_.holders[i].has_held))
      return "server '" + ctx_.holders[i].name + "' is gone with its rows";
  return {};
}

}  // namespace centroid::server
