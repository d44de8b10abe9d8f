#include "server/tables/table_store.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/base/log.h"
#include "common/proto/rows.h"
#include "server/tables/row_files.h"

namespace centroid::server {

namespace {

/// Minimum budget for copies of rows that a checkpoint has not read yet.
constexpr std::uint64_t kCopyBudgetBytes = 64u << 20;

void add(const metrics::Counter& counter, std::uint64_t count) {
  if (count != 0) counter.add(static_cast<double>(count));
}

}  // namespace

TableProbe::TableProbe(const std::string& table, metrics::Registry& registry) {
  const metrics::Labels labels{{"table", table}};
  counters_.pulled = registry.counter("centroid_rows_pulled_total", "Rows pulled", labels);
  counters_.pushed = registry.counter("centroid_rows_pushed_total",
                                      "Rows pushed; a repeated key counts once", labels);
  counters_.admitted = registry.counter("centroid_rows_admitted_total", "Rows added", labels);
  counters_.held_back = registry.counter("centroid_rows_held_back_total",
                                         "Gradients of rows not yet admitted", labels);
  counters_.evicted =
      registry.counter("centroid_rows_evicted_total", "Rows evicted to free memory", labels);
  counters_.expired =
      registry.counter("centroid_rows_expired_total", "Rows deleted because of their age", labels);
  stored_ = registry.gauge("centroid_rows_stored", "Rows stored", labels);
  waiting_ = registry.gauge("centroid_rows_waiting", "Keys that wait for admission", labels);
  bytes_ = registry.gauge("centroid_rows_memory_bytes", "Memory of rows", labels);
}

void TableProbe::update(const RowTable& table) {
  RowCounters more = table.counters();
  for_counters(more, published_, [](std::uint64_t& is, std::uint64_t was) { is -= was; });
  for_counters(counters_, more, add);
  published_ = table.counters();
  show(table);
}

void TableProbe::add_elsewhere(const proto::TableReport& total, const proto::TableReport& more) {
  elsewhere_ = total;
  for_counters(counters_, more, add);
}

void TableProbe::show(const RowTable& table) const {
  stored_.set(static_cast<double>(table.rows() + elsewhere_.rows));
  waiting_.set(static_cast<double>(table.candidates() + elsewhere_.waiting));
  bytes_.set(static_cast<double>(table.bytes() + elsewhere_.bytes));
}

TableStore::TableStore(std::vector<RowSpec> specs, const Clock& clock, metrics::Registry& registry)
    : clock_(clock), started_(clock.now()) {
  for (RowSpec& spec : specs) {
    probes_.emplace_back(spec.name, registry);
    max_bytes_.push_back(spec.max_bytes);
    tables_->tables.emplace_back(std::move(spec));
  }
}

std::uint64_t TableStore::now() const {
  const auto elapsed = std::chrono::duration_cast<std::chrono::seconds>(clock_.now() - started_);
  return at_start_ + static_cast<std::uint64_t>(elapsed.count());
}

Result<std::size_t> TableStore::number_of(const std::string& table) const {
  const auto found =
      std::ranges::find_if(tables(), [&](const RowTable& one) { return one.spec().name == table; });
  if (found == tables().end())
    return Error(ErrorCode::kNotFound, "there is no table '" + table + "'");
  return static_cast<std::size_t>(found - tables().begin());
}

Result<std::size_t> TableStore::check_file(const std::filesystem::path& checkpoint,
                                           const std::string& file) const {
  const std::string table = table_of_rows_file(file).value_or(file);
  auto number = number_of(table);
  if (number.ok()) return number;
  return Error(ErrorCode::kFailedPrecondition,
               "checkpoint " + checkpoint.string() + " has a table '" + table +
                   "', which the setting `tables` has not: name it there as it was, so that "
                   "its rows are not lost");
}

Status TableStore::share_max_bytes(std::size_t servers, std::uint64_t mine) {
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < size(); ++i) {
    RowTable& table = tables_->tables[i];
    RowSpec spec = table.spec();
    spec.max_bytes = max_bytes_[i];
    if (servers > 1 && spec.max_bytes != 0) {
      // Divide first: the share per bucket is the same on all servers.
      spec.max_bytes = spec.max_bytes / proto::kRowBuckets * mine;
      // A server without buckets gets the minimum. A share does not shrink, because memory of
      // dropped rows is not released.
      if (mine == 0) spec.max_bytes = spec.least_bytes();
      if (table.bytes() > 0) spec.max_bytes = std::max(spec.max_bytes, table.spec().max_bytes);
      if (const Status fits = spec.check(); !fits.ok())
        return fits.error().with_context("table '" + spec.name + "', of max_bytes " +
                                         std::to_string(max_bytes_[i]) + " the share of one of " +
                                         std::to_string(servers) + " servers");
    }
    table.change(std::move(spec));
  }
  return {};
}

void TableStore::begin_load(std::size_t table, const RowTable::State& state) {
  const std::lock_guard lock(tables_->mutex);
  RowTable& fresh = tables_->tables[table];
  if (fresh.rows() + fresh.candidates() > 0)  // of an interrupted load
    fresh = RowTable(RowSpec(fresh.spec()));
  fresh.begin_restore(state);
}

Status TableStore::load(std::size_t table, const RowTable::Block& block, std::uint64_t now) {
  const std::lock_guard lock(tables_->mutex);
  return put(table, block, now);
}

Status TableStore::put(std::size_t table, const RowTable::Block& block, std::uint64_t now) {
  return restore_block(tables_->tables[table], block, now, &left_out_);
}

void TableStore::log_left_out() {
  if (left_out_ > 0)
    log::warn("rows.skipped", {{"rows", left_out_}, {"why", "max_bytes, shared by the servers"}});
  left_out_ = 0;
}

void TableStore::end_load(const std::string& from) {
  restored_from_ = from;
  log_left_out();
  const std::lock_guard lock(tables_->mutex);
  for (std::size_t i = 0; i < probes_.size(); ++i) {
    const RowTable& table = tables_->tables[i];
    probes_[i].skip(table);
    probes_[i].update(table);
    log::info("rows.loaded", {{"table", table.spec().name},
                              {"rows", table.rows()},
                              {"bytes", table.bytes()},
                              {"from", from}});
  }
}

void TableStore::drop_buckets(const std::vector<std::uint16_t>& buckets) {
  std::vector<bool> goes(proto::kRowBuckets);
  for (const std::uint16_t bucket : buckets) goes[bucket] = true;
  constexpr std::size_t kPlaces = 1u << 16;
  for (RowTable& table : tables_->tables) {
    std::vector<std::uint64_t> keys;
    RowTable::Cursor cursor;
    for (bool has_more = true; has_more;) {
      has_more = table.keys(cursor, kPlaces, keys);
      std::erase_if(keys, [&](std::uint64_t key) { return !goes[proto::row_bucket(key)]; });
      table.drop(keys);
      keys.clear();
    }
  }
}

void TableStore::add_counters(std::size_t table, const proto::FrozenTable& counted) {
  const std::lock_guard lock(tables_->mutex);
  RowTable& into = tables_->tables[table];
  into.add(counted);
  probes_[table].skip(into);  // the other server has published them
}

void TableStore::set_room(std::uint64_t bytes, std::string source) {
  room_ = bytes;
  room_source_ = std::move(source);
}

std::uint64_t TableStore::reserved_bytes() const {
  std::uint64_t bytes = 0;
  for (const RowTable& table : tables())
    bytes += table.spec().max_bytes != 0 ? table.spec().max_bytes
                                         : std::max(table.bytes(), table.spec().least_bytes());
  return bytes;
}

/// Maximum memory of all tables after a push to a table without max_bytes; 0: the table does not
/// grow.
std::uint64_t TableStore::bytes_after(const RowTable& table,
                                      std::span<const std::uint64_t> pushed) const {
  if (table.spec().max_bytes != 0 || table.bytes_for_push(pushed.size()) <= table.bytes()) return 0;
  // Stored rows need no more memory.
  const std::uint64_t wanted = table.bytes_for_push(table.without_row(pushed));
  return wanted <= table.bytes() ? 0 : reserved_bytes() - table.bytes() + wanted;
}

Status TableStore::check_push(const RowTable& table, std::span<const std::uint64_t> keys) const {
  const std::uint64_t after = bytes_after(table, keys);
  if (after <= room_) return {};
  const std::size_t fresh = table.without_row(keys);
  return Error(ErrorCode::kResourceExhausted,
               "table '" + table.spec().name + "' holds " + std::to_string(table.rows()) +
                   " rows in " + std::to_string(table.bytes()) + " bytes; with " +
                   std::to_string(fresh) + " more the tables may need " + std::to_string(after) +
                   " bytes, " + room_source_ + " leaves them " + std::to_string(room_) +
                   ". Give the table max_bytes or max_age, so that rows are evicted, or the server "
                   "more memory (memory_limit)");
}

Status TableStore::check_staged(const RowSpec& spec, std::uint64_t bytes) const {
  // The rows are staged, then copied to the table.
  const std::uint64_t after = reserved_bytes() + 2 * bytes;
  if (spec.max_bytes != 0 || after <= room_) return {};
  return Error(ErrorCode::kResourceExhausted,
               "the tables may need " + std::to_string(after) + " bytes with the rows that come, " +
                   room_source_ + " leaves them " + std::to_string(room_));
}

std::shared_ptr<RowsSnapshot> TableStore::snapshot(std::uint64_t segment,
                                                   std::shared_ptr<DutyCycle> duty) {
  duty_ = duty;
  tables_->copy_budget = copy_budget();
  PushedRows pushed;
  pushed.clients = windows_.entries();
  pushed.journal = segment;
  return std::make_shared<RowsSnapshot>(tables_, now(), std::move(pushed), std::move(duty));
}

/// A quarter of the memory that the tables leave free is for copies.
std::uint64_t TableStore::copy_budget() const {
  return kCopyBudgetBytes + (room_ - std::min(room_, reserved_bytes())) / 4;
}

/// A push waits for the checkpoint if the copies' budget is used, if it may evict, which could
/// change most rows at once, or if it needs the copies' memory.
bool TableStore::is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const {
  RowTables& tables = *tables_;
  const std::uint64_t copies = tables.frozen_bytes;
  if (table.is_frozen()) {
    tables.copy_budget = copy_budget();
    if (copies > tables.copy_budget || table.may_evict(pushed.size())) return true;
  }
  if (copies <= kCopyBudgetBytes) return false;
  const std::uint64_t after = bytes_after(table, pushed);
  return after <= room_ && after > room_ - std::min(room_, copies - kCopyBudgetBytes);
}

void TableStore::hurry_snapshot() {
  if (duty_) duty_->hurry();
}

void TableStore::update_probes() {
  for (std::size_t i = 0; i < probes_.size(); ++i) update_probe(i);
}

void TableStore::skip_counters() {
  for (std::size_t i = 0; i < probes_.size(); ++i) probes_[i].skip(tables_->tables[i]);
}

void TableStore::show_elsewhere(std::size_t table, const proto::TableReport& total,
                                const proto::TableReport& more) {
  probes_[table].add_elsewhere(total, more);
  const std::lock_guard lock(tables_->mutex);
  probes_[table].show(tables_->tables[table]);
}

std::vector<TableView> TableStore::views() const {
  std::vector<TableView> views;
  const std::lock_guard lock(tables_->mutex);
  for (const RowTable& table : tables_->tables) {
    const RowSpec& spec = table.spec();
    TableView view;
    view.name = spec.name;
    view.optimizer = to_string(spec.rule);
    RowSpec whole = spec;
    whole.max_bytes = max_bytes_[views.size()];
    view.spec = to_string(whole);
    view.dim = spec.dim;
    view.rows = table.rows();
    view.waiting = table.candidates();
    view.bytes = table.bytes();
    view.payload_bytes = table.payload_bytes();
    view.max_bytes = max_bytes_[views.size()];
    copy_counters(table.counters(), view);
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace centroid::server
