#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "common/proto/tables.h"
#include "server/api/view.h"
#include "server/rows/push_windows.h"
#include "server/rows/row_table.h"
#include "server/store/duty_cycle.h"
#include "server/tables/rows_snapshot.h"

namespace centroid::server {

/// A table's metrics. They count what this process did; what a checkpoint or a journal has counted
/// stands in the table alone.
class TableProbe {
 public:
  TableProbe(const std::string& table, metrics::Registry& registry);

  /// Publish what the table has counted since the last call.
  void update(const RowTable& table);
  /// What the table has counted so far is not this process's.
  void skip(const RowTable& table) { published_ = table.counters(); }
  /// Other servers have `total` of the table, and have counted `more` since the last call.
  void add_elsewhere(const proto::TableReport& total, const proto::TableReport& more);
  /// Publish how large the table is.
  void show(const RowTable& table) const;

 private:
  RowCounters published_;
  struct Counters {
    metrics::Counter pulled, pushed, admitted, held_back, evicted, expired;
  };
  Counters counters_;
  metrics::Gauge stored_, waiting_, bytes_;
  proto::TableReport elsewhere_;
};

/// The tables of a server with what clients have pushed: their state, what is counted of it, and
/// the memory that they may take: for rows, for rows that come from other servers, and for copies
/// of rows that change before a checkpoint has read them.
///
/// lock    the tables are changed under `mutex`, as a checkpoint reads them meanwhile. Functions
///         with a lock of their own say so
/// thread  one at a time
class TableStore {
 public:
  TableStore(std::vector<RowSpec> specs, const Clock& clock, metrics::Registry& registry);

  std::size_t size() const { return probes_.size(); }
  std::mutex& mutex() const { return tables_->mutex; }
  RowTables& shared() const { return *tables_; }
  RowTable& table(std::size_t number) { return tables_->tables[number]; }
  const RowTable& table(std::size_t number) const { return tables_->tables[number]; }
  const std::vector<RowTable>& tables() const { return tables_->tables; }
  const RowSpec& spec(std::size_t number) const { return table(number).spec(); }
  /// The time that rows age by: seconds since the tables were begun, while there was a server.
  std::uint64_t now() const;
  /// This server begins with rows that have got so far.
  void begin_at(std::uint64_t seconds) { at_start_ = std::max(at_start_, seconds); }
  PushWindows& windows() { return windows_; }
  const PushWindows& windows() const { return windows_; }
  /// Grows with every push that was applied, and with every move of buckets.
  std::uint64_t changes() const { return changes_; }
  void count_change() { ++changes_; }
  /// What this server began with: a checkpoint, or "the journal"; empty: nothing.
  const std::string& restored_from() const { return restored_from_; }
  void set_restored_from(std::string from) { restored_from_ = std::move(from); }

  /// fails  not_found
  Result<std::size_t> number_of(const std::string& table) const;
  /// The number of the table that a file of a checkpoint has.
  /// fails  failed_precondition: the settings have it not
  Result<std::size_t> check_file(const std::filesystem::path& checkpoint,
                                 const std::string& file) const;
  /// This server has `mine` of the buckets of tables on so many servers: of max_bytes the same
  /// share, but not less than it was since rows are here. Locks.
  /// fails  invalid_argument: a share is too small
  Status share_max_bytes(std::size_t servers, std::uint64_t mine);

  // loading
  /// Make an empty table ready; what an interrupted load has left goes. Locks.
  void begin_load(std::size_t table, const RowTable::State& state);
  /// Rows without room are counted, until `log_left_out`. Locks.
  Status load(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  /// The same. The lock is the caller's.
  Status put(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  void log_left_out();
  /// All rows have come. Locks.
  void end_load(const std::string& from);
  /// Rows of these buckets go; all tables are looked through.
  void drop_buckets(const std::vector<std::uint16_t>& buckets);
  /// What a server counted that has gone. Locks.
  void add_counters(std::size_t table, const proto::FrozenTable& counted);

  // memory
  /// For all tables. `source`: of the limit, for errors
  void set_room(std::uint64_t bytes, std::string source);
  /// That the tables may take or have taken: max_bytes, of a table without it what it has.
  std::uint64_t reserved_bytes() const;
  /// A push of these keys.
  /// fails  resource_exhausted: a table without max_bytes would need more
  Status check_push(const RowTable& table, std::span<const std::uint64_t> keys) const;
  /// So many bytes of rows are staged beside the tables, to come into this one.
  /// fails  resource_exhausted, as a push
  Status check_staged(const RowSpec& spec, std::uint64_t bytes) const;

  // a checkpoint that reads the tables meanwhile
  /// The present state, with the number of the journal's segment that follows it. `duty`: nobody
  /// waits for the checkpoint yet; a push that it holds up hurries it.
  std::shared_ptr<RowsSnapshot> snapshot(std::uint64_t segment, std::shared_ptr<DutyCycle> duty);
  /// This push has to wait until the checkpoint has read more. The lock is the caller's.
  bool is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const;
  void hurry_snapshot();

  // what is shown
  void update_probe(std::size_t table) { probes_[table].update(tables_->tables[table]); }
  void update_probes();
  /// What the tables have counted so far is not this process's.
  void skip_counters();
  /// What the tables have beside these rows lies on other servers. Locks.
  void show_elsewhere(std::size_t table, const proto::TableReport& total,
                      const proto::TableReport& more);
  /// Locks.
  std::vector<TableView> views() const;

 private:
  std::uint64_t copy_budget() const;
  std::uint64_t bytes_after(const RowTable& table, std::span<const std::uint64_t> pushed) const;

  const Clock& clock_;
  const TimePoint started_;
  std::uint64_t at_start_ = 0;
  std::shared_ptr<RowTables> tables_ = std::make_shared<RowTables>();
  std::vector<TableProbe> probes_;        ///< by table
  std::vector<std::uint64_t> max_bytes_;  ///< by table: on all servers
  PushWindows windows_;
  std::uint64_t changes_ = 0;
  std::uint64_t left_out_ = 0;  ///< rows that had no room when they were loaded
  std::string restored_from_;
  std::uint64_t room_ = ~std::uint64_t{0};
  std::string room_source_;
  std::shared_ptr<DutyCycle> duty_;  ///< of the newest snapshot
};

/// The keys at the beginning of a payload.
inline std::span<const std::uint64_t> keys_in(Bytes payload, std::uint32_t rows) {
  return {reinterpret_cast<const std::uint64_t*>(payload.data()), rows};
}

}  // namespace centroid::server
