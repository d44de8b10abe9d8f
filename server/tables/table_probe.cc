#include "server/tables/table_probe.h"

#include <string>

namespace centroid::server {

namespace {

void add(const metrics::Counter& counter, std::uint64_t count) {
  if (count != 0) counter.add(static_cast<double>(count));
}

}  // namespace

TableProbe::TableProbe(const std::string& table, metrics::Registry& registry) {
  const metrics::Labels labels{{"table", table}};
  counters_.pulled = registry.counter("centroid_rows_pulled_total", "Rows pulled", labels);
  counters_.pushed =
      registry.counter("centroid_rows_pushed_total", "Rows of pushes, a repeated key once", labels);
  counters_.admitted = registry.counter("centroid_rows_admitted_total", "Rows stored anew", labels);
  counters_.held_back = registry.counter("centroid_rows_held_back_total",
                                         "Gradients of rows not yet admitted", labels);
  counters_.evicted =
      registry.counter("centroid_rows_evicted_total", "Rows taken away for want of memory", labels);
  counters_.expired =
      registry.counter("centroid_rows_expired_total", "Rows taken away by age", labels);
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

}  // namespace centroid::server
