#include <algorithm>

#include "common/base/log.h"
#include "server/shard/placement.h"
#include "server/table_servers/table_loader.h"

namespace centroid::server {

using proto::TablesKind;

namespace {

constexpr std::chrono::milliseconds kReplayPoll{50};

/// Gives some servers their keys, from the newest checkpoint and their journals. Of one thread.
class TableLoading {
 public:
  TableLoading(TableGroup& group, TableLoader& loader, std::string& run_id,
               std::optional<SavedTables> saved, std::vector<std::size_t> which)
      : group_(group),
        loader_(loader),
        run_id_(run_id),
        which_(std::move(which)),
        saved_(std::move(saved)) {}

  Task<Status> run();

 private:
  // Each step needs those before it.
  Task<Status> find_saved();
  Status set_tables();
  Task<Status> send_tables();
  Task<Status> put_known_pushes();
  Task<Status> load_saved();
  Task<Status> replay_journals();

  void set_owners();
  Task<Status> replay_mine();
  Task<Status> await_replay(std::size_t which);

  TableGroup& group_;
  TableLoader& loader_;
  std::string& run_id_;
  const std::vector<std::size_t> which_;
  std::optional<SavedTables> saved_;
  proto::Tables tables_;
  std::vector<bool> wanted_;  ///< by server
  bool is_needed_ = false;    ///< what the checkpoint has
};

Task<Status> TableLoading::run() {
  CENTROID_CO_TRY(co_await find_saved());
  CENTROID_CO_TRY(set_tables());
  CENTROID_CO_TRY(co_await send_tables());
  CENTROID_CO_TRY(co_await put_known_pushes());
  CENTROID_CO_TRY(co_await load_saved());
  CENTROID_CO_TRY(co_await replay_journals());
  co_return Status();
}

/// Later there may be a newer checkpoint than that of the start.
Task<Status> TableLoading::find_saved() {
  if (!group_.has_begun) co_return Status();
  auto found = co_await loader_.find_newest();
  if (!found.ok()) {
    log::error("rows.restore_failed", {{"why", found.error()}});
    co_return found.error();
  }
  saved_ = std::move(found).value();
  co_return Status();
}

/// What each of the servers gets.
Status TableLoading::set_tables() {
  tables_.tables = group_.options.tables;
  if (saved_) tables_.saved_clock = saved_->clock;
  tables_.clock = group_.is_leader_loaded ? group_.rows.store().now()
                                          : tables_.saved_clock + group_.rows.store().now();
  if (saved_) tables_.restored_from = saved_->entry.path.filename().string();
  tables_.writes_journal = group_.options.writes_journal;
  tables_.journal_sync_ms = static_cast<std::uint32_t>(group_.options.journal_sync.count());
  wanted_.assign(group_.holders.size(), false);
  proto::Route route = group_.rows.moves().route();
  for (std::size_t i = 1; i < group_.holders.size(); ++i)
    if (group_.holders[i].shard) route.servers[i].endpoint = group_.holders[i].shard->endpoint;
  if (route.servers !=
      group_.rows.moves().route().servers) {  // a server returned at another endpoint
    ++route.version;
    CENTROID_TRY(group_.rows.moves().set_route(route, 0));
  }
  tables_.route = std::move(route);
  if (saved_) set_owners();
  return {};
}

/// By bucket, as the checkpoint has them.
void TableLoading::set_owners() {
  tables_.route.owners = loader_.owners_of(*saved_);
  if (saved_->is_followed && saved_->route != 0) tables_.route.version = saved_->route;
  for (const std::size_t i : which_)
    is_needed_ = is_needed_ || i == 0 || saved_->journals.contains(group_.holders[i].name) ||
                 std::ranges::find(tables_.route.owners, i) != tables_.route.owners.end();
  // Buckets of a server that is gone: nobody asks for them.
  std::ranges::replace(tables_.route.owners, kNobody, std::uint16_t{0});
}

Task<Status> TableLoading::send_tables() {
  for (const std::size_t i : which_) {
    wanted_[i] = true;
    if (i == 0) continue;
    tables_.journal = 0;  // what is in its journal is older
    if (saved_)
      if (const auto own = saved_->journals.find(group_.holders[i].name);
          own != saved_->journals.end())
        tables_.journal = own->second;
    auto head = proto::encode(tables_);
    CENTROID_CO_TRY(co_await group_.ask(i, TablesKind::kTables, std::move(head)));
  }
  co_return Status();
}

/// A server that joins for the first time, or again after a drain, gets the pushes known here.
Task<Status> TableLoading::put_known_pushes() {
  if (!group_.has_begun) co_return Status();
  std::vector<std::size_t> fresh;
  for (const std::size_t i : which_)
    if (i != 0 && (!saved_ || !saved_->journals.contains(group_.holders[i].name) ||
                   !group_.holders[i].has_held))
      fresh.push_back(i);
  auto put = [loader = &loader_, fresh,
              pushes = group_.rows.store().windows().entries()]() -> Status {
    for (const std::size_t i : fresh) CENTROID_TRY(loader->put_pushes(i, pushes));
    return {};
  };
  co_return co_await run_on(group_.blocking, std::move(put));
}

Task<Status> TableLoading::load_saved() {
  if (!saved_ || !is_needed_) co_return Status();
  bool is_gone = false;  // it may have been deleted meanwhile
  auto read = [loader = &loader_, saved = saved_, wanted = wanted_, &is_gone] {
    Status done = loader->load(*saved, wanted);
    is_gone = !done.ok() && !saved->is_there();
    return done;
  };
  const Status loaded = co_await run_on(group_.blocking, std::move(read));
  if (!loaded.ok()) {
    const bool is_lost = std::ranges::any_of(
        which_, [&](std::size_t i) { return i != 0 && !group_.holders[i].is_here(); });
    // A newer checkpoint may have replaced it meanwhile.
    if (!is_lost && !(group_.has_begun && is_gone)) group_.hooks.fail(loaded.error());
  }
  co_return loaded;
}

Task<Status> TableLoading::replay_journals() {
  for (const std::size_t i : which_) {
    if (i == 0) {
      CENTROID_CO_TRY(co_await replay_mine());
      continue;
    }
    CENTROID_CO_TRY(co_await group_.ask(i, TablesKind::kReplay));
  }
  for (const std::size_t i : which_)
    if (i != 0) CENTROID_CO_TRY(co_await await_replay(i));
  co_return Status();
}

Task<Status> TableLoading::replay_mine() {
  if (saved_) {
    const auto own = saved_->journals.find("");
    group_.rows.end_load(saved_->clock, own == saved_->journals.end() ? 1 : own->second,
                         tables_.restored_from);
  }
  const Status replayed = co_await loader_.replay_here(run_id_);
  if (!replayed.ok()) group_.hooks.fail(replayed.error());
  CENTROID_CO_TRY(replayed);
  group_.is_leader_loaded = true;
  group_.holders[0].state = HolderState::kServing;
  co_return Status();
}

Task<Status> TableLoading::await_replay(std::size_t which) {
  const HolderSession shard = group_.holders[which].shard;
  for (;;) {
    const auto reply = co_await group_.shards.ask(
        shard, static_cast<proto::ServersKind>(TablesKind::kTablesReport),
        std::vector<std::byte>());
    if (!reply.ok()) co_return reply.error();
    CENTROID_CO_ASSIGN(auto report, proto::decode<proto::TablesReport>(reply->head));
    if (report.is_loaded) {
      TableHolder& holder = group_.holders[which];
      group_.take_report(holder, std::move(report));
      holder.state = HolderState::kLoaded;
      log::info("rows.placed", {{"server", holder.name}, {"servers", group_.holders.size()}});
      co_return Status();
    }
    const bool goes_on =
        co_await sleep_until(group_.clock.now() + kReplayPoll);  // lint-ok: another process replays
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  }
}

}  // namespace

Task<Status> TableLoader::load_onto(std::vector<std::size_t> which,
                                    std::optional<SavedTables> saved, std::string& run_id) {
  TableLoading bringing(group_, *this, run_id, std::move(saved), std::move(which));
  co_return co_await bringing.run();
}

}  // namespace centroid::server
