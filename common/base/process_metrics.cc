#include "common/base/process_metrics.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

#include "common/base/version.h"

namespace centroid::metrics {
namespace {

/// Fields of /proc/self/stat by their number in proc(5), from 3 on. The second one is a name in
/// parentheses that may hold anything.
class Stat {
 public:
  Stat() {
    std::ifstream file("/proc/self/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto end = text.rfind(')');
    if (end == std::string::npos) return;
    std::istringstream rest(text.substr(end + 1));
    fields_.assign(std::istream_iterator<std::string>(rest), {});
  }
  double operator[](std::size_t number) const {
    const std::size_t at = number - 3;
    return at < fields_.size() ? std::strtod(fields_[at].c_str(), nullptr) : 0;
  }

 private:
  std::vector<std::string> fields_;
};

constexpr std::size_t kUserTime = 14, kSystemTime = 15, kThreads = 20, kStartTime = 22,
                      kResidentPages = 24;

double boot_unix_seconds() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

double open_descriptors() {
  std::error_code failed;
  double count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", failed), end; !failed && at != end;
       at.increment(failed))
    ++count;
  return count;
}

}  // namespace

void add_process(Registry& registry, const std::string& program) {
  registry
      .gauge("centroid_build_info", "1; the labels say which program and version this is.",
             {{"program", program}, {"version", kVersion}})
      .set(1);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  // Names that Prometheus' own client libraries use, so that common dashboards find them.
  registry.gauge("process_start_time_seconds", "Start of the process since the epoch, in seconds.")
      .set(boot_unix_seconds() + Stat()[kStartTime] / ticks);
  const Counter cpu =
      registry.counter("process_cpu_seconds_total", "Processor time, user and system, in seconds.");
  const Gauge memory = registry.gauge("process_resident_memory_bytes", "Resident memory in bytes.");
  const Gauge descriptors = registry.gauge("process_open_fds", "Open file descriptors.");
  const Gauge threads = registry.gauge("process_threads", "Threads of the process.");
  const auto turn = std::make_shared<std::mutex>();  // two scrapes must not add the same time twice
  registry.on_collect([=] {
    const std::scoped_lock lock(*turn);
    const Stat stat;
    const double spent = (stat[kUserTime] + stat[kSystemTime]) / ticks;
    if (spent > cpu.value()) cpu.add(spent - cpu.value());
    memory.set(stat[kResidentPages] * page);
    descriptors.set(open_descriptors());
    threads.set(stat[kThreads]);
  });
}

}  // namespace centroid::metrics
