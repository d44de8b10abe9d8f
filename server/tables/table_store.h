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

/// A table's metrics. They count only this process's work; the table's counters include those of
/// checkpoint and journal.
class TableProbe {
 public:
  TableProbe(const std::string& table, metrics::Registry& registry);

  /// Publish the increase of the table's counters since the last call.
  void update(const RowTable& table);
  /// Exclude the table's present counts: they are not this process's.
  void skip(const RowTable& table) { published_ = table.counters(); }
  /// Add the other servers' `total` of the table, and their counts `more` since the last call.
  void add_elsewhere(const proto::TableReport& total, const proto::TableReport& more);
  /// Publish the table's size.
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

/// The tables of a server with the record of pushes: their state, metrics and memory limits. Memory
/// is needed for rows, for rows that arrive from other servers, and for copies of rows that change
/// before a checkpoint has read them.
///
/// lock    changes of tables need `mutex`, because a checkpoint reads them concurrently. Functions
///         that lock it are marked "Locks"
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
  /// The time for ages of rows: seconds since the tables were created, without times when no server
  /// ran.
  std::uint64_t now() const;
  /// Set the time of the loaded rows.
  void begin_at(std::uint64_t seconds) { at_start_ = std::max(at_start_, seconds); }
  PushWindows& windows() { return windows_; }
  const PushWindows& windows() const { return windows_; }
  /// Number of applied pushes and of moves of buckets.
  std::uint64_t changes() const { return changes_; }
  void count_change() { ++changes_; }
  /// Source of the initial state: a checkpoint, or "the journal"; empty: none.
  const std::string& restored_from() const { return restored_from_; }
  void set_restored_from(std::string from) { restored_from_ = std::move(from); }

  /// fails  not_found
  Result<std::size_t> number_of(const std::string& table) const;
  /// The number of the table in a checkpoint's file.
  /// fails  failed_precondition: the settings lack it
  Result<std::size_t> check_file(const std::filesystem::path& checkpoint,
                                 const std::string& file) const;
  /// Set this server's share of max_bytes, for `mine` buckets of tables on `servers` servers. It
  /// does not decrease while there are rows. Locks.
  /// fails  invalid_argument: a share is too small
  Status share_max_bytes(std::size_t servers, std::uint64_t mine);

  // loading
  /// Prepare an empty table; rows of an interrupted load are dropped. Locks.
  void begin_load(std::size_t table, const RowTable::State& state);
  /// Load rows. Those that exceed max_bytes are skipped and counted for `log_left_out`. Locks.
  Status load(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  /// The same. The caller has the lock.
  Status put(std::size_t table, const RowTable::Block& block, std::uint64_t now);
  void log_left_out();
  /// All rows are loaded. Locks.
  void end_load(const std::string& from);
  /// Drop the rows of these buckets. Scans all tables.
  void drop_buckets(const std::vector<std::uint16_t>& buckets);
  /// Add the counters of a server that left. Locks.
  void add_counters(std::size_t table, const proto::FrozenTable& counted);

  // memory
  /// Set the memory of all tables. `source`: of the limit, for errors
  void set_room(std::uint64_t bytes, std::string source);
  /// Sum over tables of max_bytes, or of the present memory for a table without it.
  std::uint64_t reserved_bytes() const;
  /// Check the memory for a push of these keys.
  /// fails  resource_exhausted: a table without max_bytes would need more
  Status check_push(const RowTable& table, std::span<const std::uint64_t> keys) const;
  /// Check the memory for `bytes` of staged rows for this table.
  /// fails  resource_exhausted, as a push
  Status check_staged(const RowSpec& spec, std::uint64_t bytes) const;

  // concurrent checkpoints
  /// The present state, with the number of the journal's segment that follows it. `duty`: limits
  /// its load while no thread waits for it; a push that must wait ends the limit.
  std::shared_ptr<RowsSnapshot> snapshot(std::uint64_t segment, std::shared_ptr<DutyCycle> duty);
  /// Whether a push must wait until the checkpoint has read more. The caller has the lock.
  bool is_held_up(const RowTable& table, std::span<const std::uint64_t> pushed) const;
  void hurry_snapshot();

  // metrics and views
  void update_probe(std::size_t table) { probes_[table].update(tables_->tables[table]); }
  void update_probes();
  /// Exclude the tables' present counts from the metrics.
  void skip_counters();
  /// Add the rows and counts of other servers to the metrics. Locks.
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
  std::vector<std::uint64_t> max_bytes_;  ///< by table, for all servers
  PushWindows windows_;
  std::uint64_t changes_ = 0;
  std::uint64_t left_out_ = 0;  ///< loaded rows that were skipped
  std::string restored_from_;
  std::uint64_t room_ = ~std::uint64_t{0};
  std::string room_source_;
  std::shared_ptr<DutyCycle> duty_;  ///< of the newest snapshot
};

/// The keys at the start of a payload.
inline std::span<const std::uint64_t> keys_in(Bytes payload, std::uint32_t rows) {
  return {reinterpret_cast<const std::uint64_t*>(payload.data()), rows};
}

}  // namespace centroid::server
