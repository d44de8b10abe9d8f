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
  pulled_ = registry.counter("centroid_rows_pulled_total", "Rows pulled", labels);
  pushed_ =
      registry.counter("centroid_rows_pushed_total", "Rows of pushes, a repeated key once", labels);
  admitted_ = registry.counter("centroid_rows_admitted_total", "Rows stored anew", labels);
  held_back_ = registry.counter("centroid_rows_held_back_total",
                                "Gradients of rows not yet admitted", labels);
  evicted_ =
      registry.counter("centroid_rows_evicted_total", "Rows taken away for want of memory", labels);
  expired_ = registry.counter("centroid_rows_expired_total", "Rows taken away by age", labels);
  stored_ = registry.gauge("centroid_rows_stored", "Rows stored", labels);
  waiting_ = registry.gauge("centroid_rows_waiting", "Keys that wait for admission", labels);
  bytes_ = registry.gauge("centroid_rows_memory_bytes", "Memory of rows", labels);
}

void TableProbe::update(const RowTable& table) {
  const RowCounters& is = table.counters();
  add(pulled_, is.pulled - published_.pulled);
  add(pushed_, is.pushed - published_.pushed);
  add(admitted_, is.admitted - published_.admitted);
  add(held_back_, is.held_back - published_.held_back);
  add(evicted_, is.evicted - published_.evicted);
  add(expired_, is.expired - published_.expired);
  published_ = is;
  show(table);
}

void TableProbe::add_elsewhere(const proto::TableReport& total, const proto::TableReport& more) {
  elsewhere_ = total;
  add(pulled_, more.pulled);
  add(pushed_, more.pushed);
  add(admitted_, more.admitted);
  add(held_back_, more.held_back);
  add(evicted_, more.evicted);
  add(expired_, more.expired);
}

void TableProbe::show(const RowTable& table) const {
  stored_.set(static_cast<double>(table.rows() + elsewhere_.rows));
  waiting_.set(static_cast<double>(table.candidates() + elsewhere_.waiting));
  bytes_.set(static_cast<double>(table.bytes() + elsewhere_.bytes));
}

}  // namespace centroid::server
