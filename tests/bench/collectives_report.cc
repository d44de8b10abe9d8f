#include "tests/bench/collectives_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace centroid::bench {
namespace {

using Cell = std::pair<std::uint32_t, std::uint64_t>;  // ranks, bytes

double gigabytes(const Row& row) { return static_cast<double>(row.bytes) / 1e9; }
double algorithm_bandwidth(const Row& row) { return gigabytes(row) / row.p50(); }
/// Bytes a rank must move each way per second, as if the all-reduce were ideal.
double bus_bandwidth(const Row& row) {
  return algorithm_bandwidth(row) * 2.0 * (row.world - 1) / row.world;
}
double cpu_per_gigabyte(const Row& row) { return quantile(row.cpu, 0.5) / gigabytes(row); }
double mib_per_peer(const Row& row) {
  return static_cast<double>(row.extra_kib) / 1024 / (row.world - 1);
}

using Cost = double (*)(const Row&);
/// Of this cell, the cheapest row whose name begins so; null: none there.
const Row* best(const std::vector<Row>& rows, const Cell& cell, const std::string& prefix,
                Cost cost) {
  const Row* found = nullptr;
  for (const Row& row : rows) {
    if (Cell(row.world, row.bytes) != cell || !row.name.starts_with(prefix)) continue;
    if (found == nullptr || cost(row) < cost(*found)) found = &row;
  }
  return found;
}
const Row* named(const std::vector<Row>& rows, const Cell& cell, const std::string& name) {
  for (const Row& row : rows)
    if (Cell(row.world, row.bytes) == cell && row.name == name) return &row;
  return nullptr;
}

/// One over the other; "-" when one was not measured.
std::string ratio(const Row* above, const Row* below, Cost cost) {
  if (above == nullptr || below == nullptr) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", cost(*above) / cost(*below));
  return text;
}

void print_ratios(const std::vector<Row>& rows) {
  std::printf(
      "\ncentroid over limit; how many times longer the best of others takes (Open MPI over shared "
      "memory: than centroid_shm);\nprocessor time and memory over those of the Gloo that has "
      "least\n");
  std::printf("%5s %10s %8s %8s %12s %12s %12s %14s\n", "ranks", "bytes", "limit", "gloo",
              "openmpi_tcp", "openmpi_shm", "cpu / gloo", "memory / gloo");
  const Cost time = [](const Row& row) { return row.p50(); };
  Cell last;
  for (const Row& row : rows) {
    const Cell cell(row.world, row.bytes);
    if (std::exchange(last, cell) == cell) continue;
    const Row* const ours = named(rows, cell, "centroid");
    std::printf(
        "%5u %10llu %8s %8s %12s %12s %12s %14s\n", row.world,
        static_cast<unsigned long long>(row.bytes),
        ratio(ours, named(rows, cell, "limit"), time).c_str(),
        ratio(best(rows, cell, "gloo", time), ours, time).c_str(),
        ratio(named(rows, cell, "openmpi_tcp"), ours, time).c_str(),
        ratio(named(rows, cell, "openmpi_shm"), named(rows, cell, "centroid_shm"), time).c_str(),
        ratio(ours, best(rows, cell, "gloo", cpu_per_gigabyte), cpu_per_gigabyte).c_str(),
        ratio(ours, best(rows, cell, "gloo", mib_per_peer), mib_per_peer).c_str());
  }
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

double Row::p50() const { return quantile(medians, 0.5); }

void print(const std::string& format, const std::vector<Row>& rows) {
  const bool is_json = format == "json", is_csv = format == "csv";
  if (is_json) std::printf("[\n");
  if (is_csv) {
    std::printf(
        "ranks,bytes,name,min_us,p50_us,p99_us,algorithm_gb_s,bus_gb_s,cpu_s_per_gb,"
        "extra_mib_per_peer\n");
  }
  if (!is_json && !is_csv) {
    std::printf("%5s %10s %-18s %10s %10s %10s %7s %7s %8s %9s\n", "ranks", "bytes", "name",
                "min us", "p50 us", "p99 us", "GB/s", "bus", "cpu s/GB", "MiB/peer");
  }
  const char* line = "%5u %10llu %-18s %10.1f %10.1f %10.1f %7.2f %7.2f %8.2f %9.1f\n";
  if (is_csv) line = "%u,%llu,%s,%.2f,%.2f,%.2f,%.3f,%.3f,%.3f,%.2f\n";
  if (is_json) {
    line =
        "  {\"ranks\": %u, \"bytes\": %llu, \"name\": \"%s\", \"min_us\": %.2f, \"p50_us\": %.2f, "
        "\"p99_us\": %.2f, \"algorithm_gb_s\": %.3f, \"bus_gb_s\": %.3f, \"cpu_s_per_gb\": %.3f, "
        "\"extra_mib_per_peer\": %.2f}";
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf(line, row.world, static_cast<unsigned long long>(row.bytes), row.name.c_str(),
                quantile(row.all, 0) * 1e6, row.p50() * 1e6, quantile(row.all, 0.99) * 1e6,
                algorithm_bandwidth(row), bus_bandwidth(row), cpu_per_gigabyte(row),
                mib_per_peer(row));
    if (is_json) std::printf(i + 1 == rows.size() ? "\n" : ",\n");
  }
  if (is_json) std::printf("]\n");
  if (!is_json && !is_csv) print_ratios(rows);
}

}  // namespace centroid::bench
