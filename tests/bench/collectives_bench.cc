// All-reduce of float32 sums between processes over TCP loopback: this project's, a bare two-way
// socket program that moves the same bytes ("limit"), and Gloo where it is installed. All
// contestants run in turn on the same processes, again and again; results are verified.

#include "tests/bench/collectives_bench.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>

namespace centroid::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::vector<std::uint32_t> worlds = {2, 4};
  std::vector<std::uint64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::string congestion_control = "auto", format = "table", only;
  std::uint32_t rounds = 5, spin_us = 0;
  double seconds = 0.15;  ///< per contestant, size and round
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(3);
}

/// Pipes from every rank to the first and back: numbers before there are connections, and a start
/// signal.
class Pipes {
 public:
  explicit Pipes(std::uint32_t world) : up_(world), down_(world) {
    for (auto* const pipes : {&up_, &down_})
      for (auto& ends : *pipes)
        if (::pipe(ends.data()) != 0) die("pipe failed");
  }
  std::vector<std::uint32_t> exchange(std::uint32_t rank, std::uint32_t value) {
    const std::size_t world = up_.size();
    std::vector<std::uint32_t> all(world, value);
    if (rank == 0) {
      for (std::size_t i = 1; i < world; ++i) get(up_[i][0], &all[i], sizeof value);
      for (std::size_t i = 1; i < world; ++i) put(down_[i][1], all.data(), 4 * world);
    } else {
      put(up_[rank][1], &value, sizeof value);
      get(down_[rank][0], all.data(), 4 * world);
    }
    return all;
  }

 private:
  static void put(int fd, const void* data, std::size_t n) {
    if (::write(fd, data, n) != static_cast<ssize_t>(n)) die("a rank is gone");
  }
  static void get(int fd, void* data, std::size_t n) {
    if (::read(fd, data, n) != static_cast<ssize_t>(n)) die("a rank is gone");
  }
  std::vector<std::array<int, 2>> up_, down_;
};

struct Row {
  std::string name;
  std::uint32_t world = 0;
  std::uint64_t bytes = 0;
  std::vector<double> all;      ///< seconds
  std::vector<double> medians;  ///< of each round
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

double time_one(Contestant& contestant, float* data, std::uint64_t count) {
  const auto begin = Clock::now();
  contestant.reduce(data, count);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One rank of one world; the first returns rows.
std::vector<Row> run_rank(const Settings& settings, const Place& place,
                          const std::vector<Entry>& entries) {
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const Entry& entry : entries) contestants.push_back(entry.make(place));
  const std::uint64_t most = *std::max_element(settings.sizes.begin(), settings.sizes.end());
  const std::unique_ptr<float, decltype(&std::free)> memory(
      static_cast<float*>(std::aligned_alloc(4096, (most + 4095) / 4096 * 4096)), &std::free);
  float* const data = memory.get();
  std::vector<Row> rows;
  for (const std::uint64_t bytes : settings.sizes) {
    const std::uint64_t count = bytes / 4;
    const std::size_t first_row = rows.size();
    std::vector<std::uint32_t> repeats;
    std::vector<std::size_t> taking_part;
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      if (bytes > contestants[i]->most_bytes()) continue;
      taking_part.push_back(i);
      for (std::uint64_t k = 0; k < count; ++k)
        data[k] = static_cast<float>((k + 1) % 17 * (place.rank + 1));
      place.exchange(0);
      contestants[i]->reduce(data, count);
      const auto sum = static_cast<float>(place.world * (place.world + 1) / 2);
      for (std::uint64_t k = 0; contestants[i]->adds() && k < count; ++k)
        if (data[k] != static_cast<float>((k + 1) % 17) * sum) die(entries[i].name + ": wrong sum");
      std::memset(data, 0, bytes);
      double once = time_one(*contestants[i], data, count);
      once = std::min(once, time_one(*contestants[i], data, count));
      // All ranks repeat as often as the slowest thinks right.
      const auto wanted = static_cast<std::uint32_t>(
          std::clamp(settings.seconds / std::max(once, 1e-6), 3.0, 3000.0));
      const auto all = place.exchange(wanted);
      repeats.push_back(*std::min_element(all.begin(), all.end()));
      rows.push_back({entries[i].name, place.world, bytes, {}, {}});
    }
    for (std::uint32_t round = 0; round < settings.rounds; ++round) {
      for (std::size_t j = 0; j < taking_part.size(); ++j) {
        place.exchange(0);
        std::vector<double> samples;
        for (std::uint32_t k = 0; k < repeats[j] + 2; ++k) {
          const double seconds = time_one(*contestants[taking_part[j]], data, count);
          if (k >= 2) samples.push_back(seconds);
        }
        Row& row = rows[first_row + j];
        row.medians.push_back(quantile(samples, 0.5));
        row.all.insert(row.all.end(), samples.begin(), samples.end());
      }
    }
  }
  place.exchange(0);
  contestants.clear();
  return rows;
}

std::vector<Row> run_world(const Settings& settings, std::uint32_t world,
                           const std::vector<Entry>& entries) {
  Pipes pipes(world);
  char folder[] = "/tmp/centroid-bench-XXXXXX";
  if (::mkdtemp(folder) == nullptr) die("mkdtemp failed");
  Place place;
  place.world = world;
  place.congestion_control =
      settings.congestion_control == "auto" ? "reno" : settings.congestion_control;
  place.scratch_folder = folder;
  place.spin_us = settings.spin_us;
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (std::uint32_t rank = 1; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) die("fork failed");
    if (child == 0) {
      place.rank = rank;
      break;
    }
    children.push_back(child);
  }
  place.exchange = [&pipes, rank = place.rank](std::uint32_t value) {
    return pipes.exchange(rank, value);
  };
  auto rows = run_rank(settings, place, entries);
  if (place.rank != 0) std::_Exit(0);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
  return rows;
}

/// Bytes a rank must move each way per second, as if the all-reduce were ideal.
double bus_gigabytes(const Row& row) {
  const double bytes = 2.0 * (row.world - 1) / row.world * static_cast<double>(row.bytes);
  return bytes / quantile(row.medians, 0.5) / 1e9;
}

void print(const Settings& settings, const std::vector<Row>& rows) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, double> ours;
  for (const Row& row : rows)
    if (row.name == "centroid") ours[{row.world, row.bytes}] = quantile(row.medians, 0.5);
  const bool is_json = settings.format == "json", is_csv = settings.format == "csv";
  if (is_json) std::printf("[\n");
  if (is_csv) std::printf("ranks,bytes,name,min_us,p50_us,p99_us,bus_gb_s,centroid_over_this\n");
  if (!is_json && !is_csv)
    std::printf("%5s %10s %-18s %10s %10s %10s %8s %10s\n", "ranks", "bytes", "name", "min us",
                "p50 us", "p99 us", "GB/s", "centroid/x");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double median = quantile(row.medians, 0.5) * 1e6;
    const double least = quantile(row.all, 0) * 1e6, most = quantile(row.all, 0.99) * 1e6;
    const double ratio = ours[{row.world, row.bytes}] * 1e6 / median;
    const auto bytes = static_cast<unsigned long long>(row.bytes);
    if (is_json) {
      std::printf(
          "  {\"ranks\": %u, \"bytes\": %llu, \"name\": \"%s\", \"min_us\": %.2f, \"p50_us\": "
          "%.2f, \"p99_us\": %.2f, \"bus_gb_s\": %.3f, \"centroid_over_this\": %.3f}%s\n",
          row.world, bytes, row.name.c_str(), least, median, most, bus_gigabytes(row), ratio,
          i + 1 == rows.size() ? "" : ",");
    } else if (is_csv) {
      std::printf("%u,%llu,%s,%.2f,%.2f,%.2f,%.3f,%.3f\n", row.world, bytes, row.name.c_str(),
                  least, median, most, bus_gigabytes(row), ratio);
    } else {
      std::printf("%5u %10llu %-18s %10.1f %10.1f %10.1f %8.2f %10.2f\n", row.world, bytes,
                  row.name.c_str(), least, median, most, bus_gigabytes(row), ratio);
    }
  }
  if (is_json) std::printf("]\n");
}

template <class T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> out;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');)
    out.push_back(static_cast<T>(std::stoull(one)));
  return out;
}

int run(const Settings& settings) {
  std::vector<Entry> entries = {limit_entry(), centroid_entry()};
#if defined(CENTROID_BENCH_GLOO)
  for (Entry& entry : gloo_entries()) entries.push_back(std::move(entry));
#endif
  if (!settings.only.empty())
    std::erase_if(entries, [&](const Entry& entry) { return entry.name != settings.only; });
  std::vector<Row> rows;
  for (const std::uint32_t world : settings.worlds) {
    auto more = run_world(settings, world, entries);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  print(settings, rows);
  return 0;
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  centroid::bench::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--ranks")
      settings.worlds = centroid::bench::numbers<std::uint32_t>(value);
    else if (flag == "--sizes")
      settings.sizes = centroid::bench::numbers<std::uint64_t>(value);
    else if (flag == "--rounds")
      settings.rounds = static_cast<std::uint32_t>(std::stoul(value));
    else if (flag == "--seconds")
      settings.seconds = std::stod(value);
    else if (flag == "--spin-us")
      settings.spin_us = static_cast<std::uint32_t>(std::stoul(value));
    else if (flag == "--congestion-control")
      settings.congestion_control = value;
    else if (flag == "--only")
      settings.only = value;
    else if (flag == "--format")
      settings.format = value;
    else
      argc = 0;
  }
  if (argc % 2 == 0) {
    std::fprintf(
        stderr,
        "usage: %s [--ranks 2,4] [--sizes BYTES,...] [--rounds N] [--seconds S] "
        "[--spin-us N] [--congestion-control NAME] [--only NAME] [--format table|csv|json]\n",
        argv[0]);
    return 2;
  }
  return centroid::bench::run(settings);
}
