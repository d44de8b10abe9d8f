#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/result.h"
#include "common/checkpoint/checkpoint.h"
#include "server/rows/row_table.h"
#include "server/store/duty_cycle.h"
#include "server/tables/row_files.h"

namespace centroid::server {

/// Tables that the service changes while a checkpoint reads them.
struct RowTables {
  std::mutex mutex;  ///< of the tables
  std::vector<RowTable> tables;
  std::atomic<std::uint64_t> frozen_bytes{0};  ///< copies that the checkpoint has not read
  std::atomic<std::uint64_t> copy_budget{0};   ///< limit of frozen_bytes
};

/// A snapshot of all tables and of the record of pushes, while requests continue.
class RowsSnapshot {
 public:
  /// `duty`: limits the reader's load while copies have room; nullptr: no limit
  RowsSnapshot(std::shared_ptr<RowTables> tables, std::uint64_t now, PushedRows pushed,
               std::shared_ptr<DutyCycle> duty);
  ~RowsSnapshot();
  /// Files for a checkpoint, once; any thread. The snapshot must live until they are written.
  std::vector<CheckpointPart> parts();
  /// The first segment of the journal that a checkpoint with these files needs.
  std::uint64_t journal() const { return pushed_.journal; }

  // for a checkpoint of several servers; any thread
  const std::vector<RowTable::State>& states() const { return states_; }
  const PushedRows& pushed() const { return pushed_; }
  /// The next rows of a table, each once; false: no more.
  Result<bool> read(std::size_t table, RowTable::Block& block);

 private:
  bool take(std::size_t table, const RowTable::Block& block);
  void rest();

  std::shared_ptr<RowTables> tables_;
  std::vector<RowTable::State> states_;
  PushedRows pushed_;
  const std::shared_ptr<DutyCycle> duty_;
  RowTable::Frozen frozen_;       ///< only the reader's, as the next
  std::uint64_t read_bytes_ = 0;  ///< since the last rest
};

}  // namespace centroid::server
