#pragma once

#include "common/base/metrics.h"
#include "common/proto/tables.h"
#include "server/rows/row_table.h"

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

}  // namespace centroid::server
