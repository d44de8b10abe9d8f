#include "server/tables/rows_service.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/base/random.h"
#include "server/tables/row_files.h"

namespace centroid::server {

namespace {

std::vector<RowSpec> parsed(const std::string& tables) {
  auto specs = parse_tables(tables);
  CENTROID_CHECK(specs.ok());  // server::finish has checked
  return std::move(specs).value();
}

}  // namespace

RowsService::RowsService(const std::string& tables, std::chrono::milliseconds lease,
                         const Clock& clock, metrics::Registry& registry)
    : clock_(clock),
      sessions_(lease, clock, registry, !tables.empty()),
      store_(parsed(tables), clock, registry),
      journal_(store_, clock),
      moves_(store_, journal_),
      incarnation_(random_seed()) {}

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
    CENTROID_ASSIGN(const std::size_t number, store_.check_file(checkpoint, file));
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

void RowsService::load_pushes(const std::vector<PushWindows::Entry>& clients) {
  store_.windows().restore(clients);
  for (const PushWindows::Entry& entry : clients) sessions_.set_gone(entry.client);
}

void RowsService::end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from) {
  store_.begin_at(clock);
  journal_.set_first_segment(journal);
  store_.end_load(from);
}

proto::TablesReport RowsService::report() const {
  proto::TablesReport report;
  report.is_loaded = true;
  report.changes = store_.changes();
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
    copy_counters(view, table);
    report.tables.push_back(table);
  }
  std::vector<WaitView> held;
  waits(held);
  for (const WaitView& view : held) {
    proto::RowsWait wait;
    wait.waiter = view.waiter;
    wait.waits_for = view.waits_for;
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
