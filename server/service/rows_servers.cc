#include "server/service/rows_servers.h"

#include <algorithm>

#include "common/base/log.h"
#include "server/shard/placement.h"

namespace centroid::server {

using proto::ServersKind;
using proto::TablesKind;

namespace {

constexpr std::chrono::milliseconds kLook{20};
/// After a failure.
constexpr std::chrono::seconds kAgain{1};
using Head = std::vector<std::byte>;
/// How reading a checkpoint ended; it may be gone meanwhile.
struct Loaded {
  Status status;
  bool is_gone = false;
};

ServersKind kind_of(TablesKind kind) { return static_cast<ServersKind>(kind); }

}  // namespace

RowsServers::RowsServers(Executor executor, Executor blocking, const Clock& clock,
                         RowsService& rows, ShardGroup& shards, Options options, Hooks hooks)
    : executor_(std::move(executor)),
      blocking_(std::move(blocking)),
      clock_(clock),
      rows_(rows),
      shards_(shards),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      since_(clock.now()) {
  rows_.hold(why_);
}

bool RowsServers::holds(const std::string& server) const {
  return index_of(server) || std::ranges::find(released_, server) != released_.end();
}

/// The leader, then the others in the order of names: with the same servers the same keys.
Status RowsServers::place(std::vector<std::string> others, const Saved* saved) {
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
    route.owners = owners_of(*saved);
    if (std::ranges::find(route.owners, kNobody) != route.owners.end())
      return Error(ErrorCode::kDataLoss, "checkpoint " + saved->entry.path.string() +
                                             " does not say where all buckets of its tables lay");
  }
  for (std::size_t i = 0; i < holders_.size(); ++i) {
    holders_[i].has_held = std::ranges::find(route.owners, i) != route.owners.end();
    holders_[i].is_named = saved != nullptr;
  }
  return rows_.set_route(std::move(route), 0);
}

/// Where the rows are to lie, once the servers of the start are here.
bool RowsServers::choose() {
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

Task<void> RowsServers::run() {
  while (!is_ended_) {
    co_await look();
    const bool goes_on = co_await sleep_until(clock_.now() + kLook);
    if (!goes_on) co_return;
  }
}

/// One look at who is here, and what follows from it.
Task<void> RowsServers::look() {
  if (clock_.now() < again_ || is_ended_ || !choose()) co_return;
  if (is_begun_ && !is_ending_) {
    const bool is_settled = co_await welcome();
    if (!is_settled) co_return;
    const bool is_lighter = co_await let_go();
    if (!is_lighter) co_return;
  }
  std::vector<std::size_t> which;
  if (!is_mine_loaded_) which.push_back(0);
  std::string missing;
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    Holder& holder = holders_[i];
    const Link present = shards_.find(holder.name);
    if (holder.link && holder.link != present) lost(holder);
    holder.link = present;
    if (present) holder.max_payload = present->session->peer().limits.max_payload_bytes;
    if (!present) missing += (missing.empty() ? "'" : ", '") + holder.name + "'";
    if (present && holder.state == State::kAbsent) which.push_back(i);
  }
  if (!is_begun_ && !missing.empty()) {  // all at once: the checkpoint is read once
    why_ = "the tables wait for server " + missing + ", on which rows lay";
    rows_.hold(why_);
    co_return;
  }
  if (!which.empty()) {
    if (!is_begun_ && again_ == TimePoint()) {
      why_ = "the tables are being loaded";
      rows_.hold(why_);
    }
    const bool is_quiet = co_await pause_moves();
    if (!is_quiet) co_return;
    const Status brought = co_await bring(std::move(which));
    resume_moves();
    if (!brought.ok()) {
      put_off("the tables cannot be loaded yet", brought.error());
      co_return;
    }
  }
  const bool is_whole = std::ranges::all_of(
      holders_, [](const Holder& holder) { return holder.state != State::kAbsent; });
  if (!is_begun_ && is_whole) {
    const Status begun = co_await begin();
    if (!begun.ok()) {
      put_off("the tables wait for their first checkpoint", begun.error());
      co_return;
    }
  }
  if (!is_begun_) co_return;
  const bool has_loaded = std::ranges::any_of(
      holders_, [](const Holder& holder) { return holder.state == State::kLoaded; });
  if (has_loaded) {
    const bool is_quiet = co_await pause_moves();
    if (!is_quiet) co_return;
    for (std::size_t i = 1; i < holders_.size(); ++i) {
      if (holders_[i].state != State::kLoaded) continue;
      auto route = proto::encode(rows_.route());
      const Status served = co_await ask(i, TablesKind::kServe, std::move(route));
      if (served.ok() && holders_[i].state == State::kLoaded) holders_[i].state = State::kServing;
    }
    resume_moves();
  }
  const bool is_up_to_date = co_await owe_checkpoint();
  if (!is_up_to_date) co_return;
  if (clock_.now() - refreshed_ >= options_.lease / 4) co_await refresh();
}

void RowsServers::lost(Holder& holder) {
  if (holder.state == State::kServing)
    log::warn("rows.server_lost",
              {{"server", holder.name}, {"action", "requests for its rows wait for it"}});
  ++losses_;
  take_report(holder, {});
  holder.state = State::kAbsent;
  holder.is_full = false;
  holder.link.reset();
  holder.gone_since = clock_.now();
}

void RowsServers::put_off(const std::string& what, const Error& why) {
  again_ = clock_.now() + kAgain;
  why_ = what + ": " + why.to_string();
  if (!is_begun_) rows_.hold(why_);
}

Task<Status> RowsServers::ask(std::size_t which, TablesKind kind, std::vector<std::byte> head) {
  const Link link = holders_[which].link;
  if (!link)
    co_return Error(ErrorCode::kUnavailable, "server '" + holders_[which].name + "' is gone");
  const auto reply = co_await shards_.ask(link, kind_of(kind), std::move(head));
  if (!reply.ok()) co_return reply.error();
  co_return Status();
}

/// Some servers are given their keys, with what the newest checkpoint and their journals have of
/// them. Each step needs those before it.
class RowsServers::Bringing {
 public:
  Bringing(RowsServers& all, std::vector<std::size_t> which)
      : all_(all), which_(std::move(which)), saved_(all.saved_) {}

  Task<Status> find_saved();
  Status set_tables();
  Task<Status> send_tables();
  Task<Status> put_known_pushes();
  Task<Status> load_saved();
  Task<Status> replay_journals();

 private:
  void set_owners();
  Status replay_mine();

  RowsServers& all_;
  const std::vector<std::size_t> which_;
  std::optional<Saved> saved_;
  proto::Tables tables_;
  std::vector<bool> wanted_;  ///< by server
  bool is_needed_ = false;    ///< what the checkpoint has
};

/// Of a job that has begun there may be a newer checkpoint than that of the start.
Task<Status> RowsServers::Bringing::find_saved() {
  if (!all_.is_begun_) co_return Status();
  auto look_up = [all = &all_] {
    return std::make_shared<Result<std::optional<Saved>>>(all->newest());
  };
  const auto found = co_await run_on(all_.blocking_, std::move(look_up));
  if (!found->ok()) {
    log::error("rows.not_restored", {{"why", found->error()}});
    co_return found->error();
  }
  saved_ = std::move(*found).value();
  co_return Status();
}

/// What each of the servers is told.
Status RowsServers::Bringing::set_tables() {
  const Options& options = all_.options_;
  const std::vector<Holder>& holders = all_.holders_;
  RowsService& rows = all_.rows_;
  tables_.tables = options.tables;
  if (saved_) tables_.saved_clock = saved_->clock;
  tables_.clock = all_.is_mine_loaded_ ? rows.clock() : tables_.saved_clock + rows.clock();
  if (saved_) tables_.restored_from = saved_->entry.path.filename().string();
  tables_.keeps_journal = options.keeps_journal;
  tables_.journal_sync_ms = static_cast<std::uint32_t>(options.journal_sync.count());
  wanted_.assign(holders.size(), false);
  proto::Route route = rows.route();
  for (std::size_t i = 1; i < holders.size(); ++i)
    if (holders[i].link) route.servers[i].endpoint = holders[i].link->endpoint;
  if (route.servers != rows.route().servers) {  // a server came back at another place
    ++route.version;
    CENTROID_TRY(rows.set_route(route, 0));
  }
  tables_.route = std::move(route);
  if (saved_) set_owners();
  return {};
}

/// By bucket, as the checkpoint has them.
void RowsServers::Bringing::set_owners() {
  tables_.route.owners = all_.owners_of(*saved_);
  if (saved_->is_followed && saved_->route != 0) tables_.route.version = saved_->route;
  for (const std::size_t i : which_)
    is_needed_ = is_needed_ || i == 0 || saved_->journals.contains(all_.holders_[i].name) ||
                 std::ranges::find(tables_.route.owners, i) != tables_.route.owners.end();
  // Of a server that is here no more: not asked for.
  std::ranges::replace(tables_.route.owners, kNobody, std::uint16_t{0});
}

Task<Status> RowsServers::Bringing::send_tables() {
  for (const std::size_t i : which_) {
    wanted_[i] = true;
    if (i == 0) continue;
    tables_.journal = 0;  // what is in its journal is older
    if (saved_)
      if (const auto own = saved_->journals.find(all_.holders_[i].name);
          own != saved_->journals.end())
        tables_.journal = own->second;
    auto head = proto::encode(tables_);
    CENTROID_CO_TRY(co_await all_.ask(i, TablesKind::kTables, std::move(head)));
  }
  co_return Status();
}

/// Who comes for the first time, or again after it was drained: what it knew then is here.
Task<Status> RowsServers::Bringing::put_known_pushes() {
  if (!all_.is_begun_) co_return Status();
  std::vector<std::size_t> fresh;
  for (const std::size_t i : which_)
    if (i != 0 && (!saved_ || !saved_->journals.contains(all_.holders_[i].name) ||
                   !all_.holders_[i].has_held))
      fresh.push_back(i);
  auto put = [all = &all_, fresh, pushes = all_.rows_.pushes()] {
    auto done = std::make_shared<Status>();
    for (const std::size_t i : fresh)
      if (done->ok()) *done = all->put_pushes(i, pushes);
    return done;
  };
  const auto known = co_await run_on(all_.blocking_, std::move(put));
  co_return *known;
}

Task<Status> RowsServers::Bringing::load_saved() {
  if (!saved_ || !is_needed_) co_return Status();
  auto read = [all = &all_, saved = saved_, wanted = wanted_] {
    auto done = std::make_shared<Loaded>();
    done->status = all->load(*saved, wanted);
    done->is_gone = !done->status.ok() && !saved->is_there();
    return done;
  };
  const auto loaded = co_await run_on(all_.blocking_, std::move(read));
  if (!loaded->status.ok()) {
    const bool is_lost = std::ranges::any_of(
        which_, [&](std::size_t i) { return i != 0 && !all_.is_here(all_.holders_[i]); });
    // One that was written since it was found may have taken its place: there is a newer one.
    if (!is_lost && !(all_.is_begun_ && loaded->is_gone)) all_.hooks_.fail(loaded->status.error());
    co_return loaded->status;
  }
  co_return Status();
}

Task<Status> RowsServers::Bringing::replay_journals() {
  for (const std::size_t i : which_) {
    if (i == 0) {
      CENTROID_CO_TRY(replay_mine());
      continue;
    }
    CENTROID_CO_TRY(co_await all_.ask(i, TablesKind::kReplay, Head()));
  }
  for (const std::size_t i : which_)
    if (i != 0) CENTROID_CO_TRY(co_await all_.await_replay(i));
  co_return Status();
}

Status RowsServers::Bringing::replay_mine() {
  if (saved_) {
    const auto own = saved_->journals.find("");
    all_.rows_.end_load(saved_->clock, own == saved_->journals.end() ? 1 : own->second,
                        tables_.restored_from);
  }
  const Status replayed = all_.rows_.replay(all_.options_.journal_dir, *all_.run_id_);
  if (!replayed.ok()) all_.hooks_.fail(replayed.error());
  CENTROID_TRY(replayed);
  all_.is_mine_loaded_ = true;
  all_.holders_[0].state = State::kServing;
  return {};
}

/// Give these servers their keys, with what the newest checkpoint and their journals have of them.
/// fails when one of them is lost, or refuses its part (it leaves then, or comes again); what is
/// wrong with the checkpoint ends the job.
Task<Status> RowsServers::bring(std::vector<std::size_t> which) {
  Bringing bringing(*this, std::move(which));
  CENTROID_CO_TRY(co_await bringing.find_saved());
  CENTROID_CO_TRY(bringing.set_tables());
  CENTROID_CO_TRY(co_await bringing.send_tables());
  CENTROID_CO_TRY(co_await bringing.put_known_pushes());
  CENTROID_CO_TRY(co_await bringing.load_saved());
  CENTROID_CO_TRY(co_await bringing.replay_journals());
  co_return Status();
}

Task<Status> RowsServers::await_replay(std::size_t which) {
  const Link link = holders_[which].link;
  for (;;) {
    const auto reply = co_await shards_.ask(link, kind_of(TablesKind::kTablesReport), Head());
    if (!reply.ok()) co_return reply.error();
    CENTROID_CO_ASSIGN(auto report, proto::decode<proto::TablesReport>(reply->head));
    if (report.is_loaded) {
      Holder& holder = holders_[which];
      take_report(holder, std::move(report));
      holder.state = State::kLoaded;
      log::info("rows.placed", {{"server", holder.name}, {"servers", holders_.size()}});
      co_return Status();
    }
    const bool goes_on = co_await sleep_until(clock_.now() + kLook);
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

/// All rows are where they are to be.
Task<Status> RowsServers::begin() {
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
  rows_.journal_claims();
  saved_.reset();
  resumes_ = true;  // from now on there may be one
  if (!is_ending_) rows_.hold("");
  log::info("rows.spread", {{"servers", holders_.size()}, {"route", rows_.route().version}});
  co_return Status();
}

Task<void> RowsServers::await_all(std::chrono::milliseconds limit) {
  const TimePoint end = clock_.now() + limit;
  const auto missing = [this] {
    std::string names;
    for (std::size_t i = 1; i < holders_.size(); ++i)
      if ((holders_[i].state != State::kServing || !is_here(holders_[i])) &&
          (owns(i) || holders_[i].has_held))
        names += (names.empty() ? "'" : ", '") + holders_[i].name + "'";
    return names;
  };
  const std::string first = missing();
  if (!is_begun_ || first.empty()) co_return;
  log::warn("rows.servers_awaited",
            {{"servers", first}, {"why", "the last checkpoint is to have their rows"}});
  awaits_all_ = true;
  while (!missing().empty() && clock_.now() < end) {
    const bool goes_on = co_await sleep_until(std::min(end, clock_.now() + kLook));
    if (!goes_on) break;
  }
  awaits_all_ = false;
  if (const std::string names = missing(); !names.empty())
    log::error("rows.servers_missing",
               {{"servers", names}, {"waited_ms", limit.count()}, {"setting", "servers_wait"}});
}

bool RowsServers::awaits(const std::string& server) const {
  const auto which = index_of(server);
  return awaits_all_ && which && !is_here(holders_[*which]);
}

bool RowsServers::serves(const std::string& server) const {
  return !is_ending_ && !is_ended_ && (holders_.empty() || index_of(server));
}

// ---- how they are

Task<void> RowsServers::refresh() {
  refreshed_ = clock_.now();
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    const Link link = holders_[i].link;
    if (holders_[i].state == State::kAbsent || !link) continue;
    const auto reply = co_await shards_.ask(link, kind_of(TablesKind::kTablesReport), Head());
    const auto at = std::ranges::find(holders_, link, &Holder::link);  // they may have changed
    if (!reply.ok() || at == holders_.end()) continue;
    auto report = proto::decode<proto::TablesReport>(reply->head);
    if (report.ok() && report->is_loaded) take_report(*at, std::move(report).value());
  }
}

void RowsServers::take_report(Holder& holder, proto::TablesReport report) {
  if (report.is_loaded && report.changes != holder.report.changes) ++seen_;
  const proto::TablesReport before = std::exchange(holder.report, std::move(report));
  tell_elsewhere(before, holder.report);
}

/// What another server's tables have now beside what it told before, for the metrics.
void RowsServers::tell_elsewhere(const proto::TablesReport& before,
                                 const proto::TablesReport& now) {
  for (std::size_t table = 0; table < rows_.tables(); ++table) {
    proto::TableReport total, more;
    const auto of = [&](const proto::TablesReport& report) {
      return table < report.tables.size() ? report.tables[table] : proto::TableReport();
    };
    const proto::TableReport was = of(before), is = of(now);
    const auto grown = [](std::uint64_t from, std::uint64_t to) {
      return to > from ? to - from : 0;
    };
    if (!before.tables.empty()) {  // else they are of before it came
      more.pulled = grown(was.pulled, is.pulled);
      more.pushed = grown(was.pushed, is.pushed);
      more.admitted = grown(was.admitted, is.admitted);
      more.held_back = grown(was.held_back, is.held_back);
      more.evicted = grown(was.evicted, is.evicted);
      more.expired = grown(was.expired, is.expired);
    }
    for (const Holder& holder : holders_) {
      const proto::TableReport part = of(holder.report);
      total.rows += part.rows;
      total.waiting += part.waiting;
      total.bytes += part.bytes;
    }
    rows_.tell_elsewhere(table, total, more);
  }
}

void RowsServers::add_to(std::vector<TableView>& views) const {
  for (const Holder& holder : holders_)
    for (std::size_t i = 0; i < std::min(views.size(), holder.report.tables.size()); ++i) {
      const proto::TableReport& more = holder.report.tables[i];
      TableView& view = views[i];
      view.rows += more.rows, view.waiting += more.waiting;
      view.bytes += more.bytes, view.payload_bytes += more.payload_bytes;
      view.pulled += more.pulled, view.pushed += more.pushed;
      view.admitted += more.admitted, view.held_back += more.held_back;
      view.evicted += more.evicted, view.expired += more.expired;
      PartView& part = view.servers.emplace_back();
      part.server = holder.name;
      part.bytes = more.bytes;
      part.rows = more.rows;
    }
}

void RowsServers::waits(std::vector<WaitView>& views) const {
  const auto seconds = [&](TimePoint since) {
    return std::chrono::duration<double>(clock_.now() - since).count();
  };
  if (!is_begun_)
    views.push_back(
        {.who = "tables", .for_whom = "servers", .what = why_, .seconds = seconds(since_)});
  for (std::size_t i = 1; is_begun_ && !is_ended_ && i < holders_.size(); ++i) {
    const Holder& holder = holders_[i];
    for (const proto::RowsWait& wait : holder.report.waits)
      views.push_back({.who = wait.who,
                       .for_whom = wait.for_whom,
                       .what = "on server '" + holder.name + "': " + wait.what,
                       .seconds = wait.seconds});
    if (holder.state == State::kServing && is_here(holder)) continue;
    if (!owns(i) && !holder.has_held) continue;  // nobody waits for it
    views.push_back({.who = awaits_all_ ? "the last checkpoint of the tables" : "clients of rows",
                     .for_whom = "servers",
                     .what = "server '" + holder.name + "' " +
                             (is_here(holder) ? "loads its rows and replays its journal"
                                              : "is gone with its rows: start it again"),
                     .seconds = seconds(holder.gone_since)});
  }
  if (!is_begun_ || is_ended_ || is_ending_) return;
  for (const std::string& server : released_)
    views.push_back({.who = "server '" + server + "'",
                     .for_whom = "checkpoint",
                     .what = "no rows lie there any more; it may go when a checkpoint is written "
                             "that does not need it",
                     .seconds = seconds(moves_since_)});
  if (const auto move = next_move())
    views.push_back({.who = "buckets of tables",
                     .for_whom = "servers",
                     .what = std::to_string(move->buckets.size()) + " are to move from server '" +
                             move->from + "' to '" + move->to + "'" +
                             (move_trouble_.empty() ? "" : ": " + move_trouble_),
                     .seconds = seconds(moves_since_)});
}

std::string RowsServers::unsettled() const {
  if (!is_begun_) return why_;
  for (std::size_t i = 1; i < holders_.size(); ++i)
    if ((holders_[i].state == State::kAbsent || !is_here(holders_[i])) &&
        (owns(i) || holders_[i].has_held))
      return "server '" + holders_[i].name + "' is gone with its rows";
  return {};
}

bool RowsServers::needs_checkpoint() const {
  if (!is_begun_) return false;  // what is in journals stays there
  // The last holds pushes off on all servers; of one that is gone without a journal nothing comes.
  const bool may_hold =
      options_.keeps_journal || std::ranges::none_of(holders_, [](const Holder& holder) {
        return holder.state == State::kAbsent;
      });
  return (is_ending_ && !is_ended_ && may_hold) || seen_ != checkpointed_ ||
         rows_.changes() != mine_checkpointed_;
}

bool RowsServers::journal_wants_checkpoint(std::uint64_t bytes) const {
  return std::ranges::any_of(holders_, [&](const Holder& holder) {
    const bool is_long = bytes != 0 && holder.report.journal_bytes > bytes;
    return holder.state == State::kServing && (holder.report.is_broken || is_long);
  });
}

}  // namespace centroid::server
