#include "server/tables/rows_service.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "server/tables/row_files.h"
#include "server/tables/rows_replay.h"

namespace centroid::server {

namespace {

std::vector<RowSpec> parsed(const std::string& tables) {
  auto specs = parse_tables(tables);
  CENTROID_CHECK(specs.ok());  // server::finish has looked
  return std::move(specs).value();
}

}  // namespace

RowsService::RowsService(const std::string& tables, std::chrono::milliseconds lease,
                         const Clock& clock, metrics::Registry& registry)
    : RowsService(parsed(tables), lease, clock, registry) {}

RowsService::RowsService(std::vector<RowSpec> specs, std::chrono::milliseconds lease,
                         const Clock& clock, metrics::Registry& registry)
    : sessions_(lease, clock, registry, !specs.empty()),
      store_(std::move(specs), clock, registry),
      room_(store_),
      journal_(store_),
      moves_(store_, room_, route_, journal_),
      requests_({store_, room_, route_, moves_, journal_, sessions_, gate_}) {}

void RowsService::tick() {
  sessions_.look();
  if (is_reading_) return;
  sessions_.expire([this](std::uint64_t client) {
    store_.windows().forget(client);
    journal_.forget(client);
  });
}

std::shared_ptr<RowsSnapshot> RowsService::begin_snapshot(std::shared_ptr<DutyCycle> duty) {
  if (!has_tables()) return nullptr;
  room_.begin_snapshot(duty);
  return store_.snapshot(journal_.rotate(), std::move(duty));
}

Status RowsService::restore(const std::filesystem::path& checkpoint,
                            const std::vector<std::string>& files) {
  std::uint64_t clock = 0, journal = 1;
  std::vector<PushWindows::Entry> clients;
  for (const std::string& file : files) {
    if (is_pushes_file(file)) {
      CENTROID_ASSIGN(PushedRows pushed, read_pushes(checkpoint / file));
      if (pushed.is_followed && file != kPushesFile)
        return Error(ErrorCode::kFailedPrecondition,
                     "checkpoint " + checkpoint.string() + " has rows of server '" + pushed.server +
                         "', whose journal may have more: start this server with " +
                         "`servers` as it was, and that one with its run_dir");
      clients.insert(clients.end(), pushed.clients.begin(), pushed.clients.end());
      if (file == kPushesFile) journal = std::max<std::uint64_t>(pushed.journal, 1);
      continue;
    }
    const std::string name = table_of_rows_file(file).value_or(file);
    CENTROID_ASSIGN(const std::size_t number, check_file(checkpoint, name));
    const std::lock_guard lock(store_.mutex());
    CENTROID_ASSIGN(const RowTable::State state,
                    read_rows(checkpoint / file, store_.table(number)));
    clock = std::max(clock, state.now);
  }
  load_pushes(clients);
  if (!files.empty()) end_load(clock, journal, checkpoint.filename().string());
  return {};
}

void RowsService::begin_reading() {
  before_ = views();
  is_reading_ = true;
}

Status RowsService::load(std::size_t table, const RowTable::Block& block, std::uint64_t now) {
  const std::lock_guard lock(store_.mutex());
  return store_.load(table, block, now);
}

void RowsService::load_pushes(const std::vector<PushWindows::Entry>& clients) {
  store_.windows().restore(clients);
  for (const PushWindows::Entry& entry : clients) sessions_.set_gone(entry.client);
}

void RowsService::end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from) {
  store_.clock().begin_at(clock);
  journal_.set_first_segment(journal);
  store_.end_load(from);
}

Status RowsService::settle(const proto::Route& route) {
  CENTROID_ASSIGN(const std::size_t self, route_.place_in(route));
  const BucketRoute::Claims claims = route_.compare(route, self);
  for (const std::uint16_t bucket : claims.mine)
    if (route_.claims()[bucket] == 0)
      return Error(ErrorCode::kDataLoss,
                   "bucket " + std::to_string(bucket) +
                       " of the tables lies on this server by route " +
                       std::to_string(route.version) +
                       ", and its journal has not its rows: is this another run_dir?");
  CENTROID_TRY(set_route(route, self));
  if (claims.lost.empty()) return {};
  const std::lock_guard lock(store_.mutex());
  store_.drop_buckets(claims.lost);
  store_.update_probes();
  return {};
}

void RowsService::journal_claims() {
  const BucketRoute::Claims claims = route_.compare();
  route_.claim(claims.mine);
  route_.release(claims.lost);
  if (!claims.mine.empty()) journal_.take(route_, claims.mine, false);
  if (!claims.lost.empty()) journal_.give(route_, claims.lost, true);
}

Status RowsService::replay(const std::filesystem::path& folder, std::string& run_id) {
  RowsReplay replay({store_, route_, moves_, journal_, sessions_}, folder);
  return replay.run(run_id);
}

Task<Status> RowsService::start_journal(Executor executor, Executor files,
                                        RowsJournalWriter::Options options) {
  if (!has_tables()) co_return Status();
  co_return co_await journal_.start(std::move(executor), std::move(files), std::move(options));
}

proto::TablesReport RowsService::report() const {
  proto::TablesReport report;
  report.is_loaded = true;
  report.changes = changes();
  report.clients = static_cast<std::uint32_t>(sessions_.count());
  if (const auto state = journal_.state()) {
    report.journal_bytes = state->bytes;
    report.is_broken = state->is_broken;
  }
  for (const TableView& view : views()) {
    proto::TableReport table;
    table.rows = view.rows;
    table.waiting = view.waiting;
    table.bytes = view.bytes;
    table.payload_bytes = view.payload_bytes;
    table.pulled = view.pulled;
    table.pushed = view.pushed;
    table.admitted = view.admitted;
    table.held_back = view.held_back;
    table.evicted = view.evicted;
    table.expired = view.expired;
    report.tables.push_back(table);
  }
  std::vector<WaitView> held;
  waits(held);
  for (const WaitView& view : held) {
    proto::RowsWait wait;
    wait.who = view.who;
    wait.for_whom = view.for_whom;
    wait.what = view.what;
    wait.seconds = view.seconds;
    report.waits.push_back(std::move(wait));
  }
  return report;
}

void RowsService::waits(std::vector<WaitView>& views) const {
  const auto trouble = [this] {
    const auto state = journal_.state();
    return state ? state->trouble : std::string();
  };
  sessions_.waits(store_, trouble, views);
}

}  // namespace centroid::server
