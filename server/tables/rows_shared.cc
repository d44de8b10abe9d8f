#include <algorithm>

#include "common/base/log.h"
#include "server/tables/rows_service.h"

/// Tables that lie on several servers: which keys are here, and how rows come and go.
namespace centroid::server {

Status RowsService::set_route(proto::Route route, std::size_t self) {
  const auto mine = static_cast<std::uint64_t>(
      std::ranges::count(route.owners, static_cast<std::uint16_t>(self)));
  const bool is_spread = route.servers.size() > 1;
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < tables_->tables.size(); ++i) {
    RowSpec spec = tables_->tables[i].spec();
    spec.max_bytes = max_bytes_[i];
    if (is_spread && spec.max_bytes != 0) {
      const RowTable& table = tables_->tables[i];
      // Of buckets that differ by one all servers take the same.
      spec.max_bytes = spec.max_bytes / proto::kRowBuckets * mine;
      // Who has none yet gets some. Memory that rows have taken is not given back when they go.
      if (mine == 0) spec.max_bytes = RowTable::least_bytes(spec);
      if (table.bytes() > 0) spec.max_bytes = std::max(spec.max_bytes, table.spec().max_bytes);
      if (const Status fits = spec.check(); !fits.ok())
        return fits.error().with_context("table '" + spec.name + "', of max_bytes " +
                                         std::to_string(max_bytes_[i]) + " the share of one of " +
                                         std::to_string(route.servers.size()) + " servers");
    }
    tables_->tables[i].change(std::move(spec));
  }
  route_ = std::move(route);
  self_ = static_cast<std::uint16_t>(self);
  return {};
}

Status RowsService::check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const {
  if (route_.servers.size() <= 1) return {};
  for (const std::uint64_t key : keys) {
    const std::uint16_t owner = route_.owners[proto::row_bucket(key)];
    if (owner == self_) continue;
    return Error(ErrorCode::kAborted,
                 "key " + std::to_string(key) + " of table '" + table.spec().name +
                     "' lies by route " + std::to_string(route_.version) + " on server '" +
                     route_.servers[owner].name + "', not on '" + route_.servers[self_].name +
                     "': the leader tells the route (RowsRoute)");
  }
  return {};
}

void RowsService::close_clients(const Error& why) {
  for (Client* const client : clients_) client->session_.close(why);
}

Result<std::size_t> RowsService::number_of(const std::string& table) const {
  const auto found = std::ranges::find_if(
      tables_->tables, [&](const RowTable& one) { return one.spec().name == table; });
  if (found == tables_->tables.end())
    return Error(ErrorCode::kNotFound, "there is no table '" + table + "'");
  return static_cast<std::size_t>(found - tables_->tables.begin());
}

void RowsService::begin_load(std::size_t table, const RowTable::State& state) {
  const std::lock_guard lock(tables_->mutex);
  RowTable& fresh = tables_->tables[table];
  if (fresh.rows() + fresh.candidates() > 0)  // of a load that came to no end
    fresh = RowTable(RowSpec(fresh.spec()));
  fresh.begin_restore(state);
}

Status RowsService::load(std::size_t table, const RowTable::Block& block, std::uint64_t now) {
  const std::lock_guard lock(tables_->mutex);
  return restore_block(tables_->tables[table], block, now, &left_out_);
}

/// Beside what is here. Nobody who has pushed is forgotten while it may come again.
void RowsService::load_pushes(const std::vector<PushWindows::Entry>& clients) {
  windows_.restore(clients);
  for (const PushWindows::Entry& entry : clients) gone_[entry.client] = clock_.now();
}

void RowsService::end_load(std::uint64_t clock, std::uint64_t journal, const std::string& from) {
  clock_at_start_ = std::max(clock_at_start_, clock);
  first_segment_ = next_position_.segment = std::max<std::uint64_t>(journal, 1);
  restored_from_ = from;
  if (left_out_ > 0)
    log::warn("rows.left_out", {{"rows", left_out_}, {"why", "max_bytes, shared by the servers"}});
  left_out_ = 0;
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < probes_.size(); ++i) {
    const RowTable& table = tables_->tables[i];
    probes_[i].told = table.counters();  // the metrics count what this process did
    probes_[i].tell(table);
    log::info("rows.loaded", {{"table", table.spec().name},
                              {"rows", table.rows()},
                              {"bytes", table.bytes()},
                              {"from", from}});
  }
}

proto::TablesReport RowsService::report() const {
  proto::TablesReport report;
  report.is_loaded = true;
  report.changes = changes_;
  report.clients = static_cast<std::uint32_t>(clients_.size());
  if (journal_) {
    const RowsJournalWriter::State state = journal_->state();
    report.journal_bytes = state.bytes;
    report.is_broken = state.is_broken;
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

void RowsService::tell_elsewhere(std::size_t table, const proto::TableReport& total,
                                 const proto::TableReport& more) {
  Probe& probe = probes_[table];
  probe.elsewhere = total;
  const auto add = [](const metrics::Counter& counter, std::uint64_t count) {
    if (count != 0) counter.add(static_cast<double>(count));
  };
  add(probe.pulled, more.pulled);
  add(probe.pushed, more.pushed);
  add(probe.admitted, more.admitted);
  add(probe.held_back, more.held_back);
  add(probe.evicted, more.evicted);
  add(probe.expired, more.expired);
  const std::lock_guard lock(tables_->mutex);
  probe.show(tables_->tables[table]);
}

}  // namespace centroid::server
