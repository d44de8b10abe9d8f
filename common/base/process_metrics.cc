#include "common/base/process_metrics.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "common/base/version.h"

namespace centroid::metrics {
namespace {

/// Text of a small file of /proc; "" if it is unreadable. Without a stream: a scrape reads two.
std::string read_proc(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[2048];
  const ssize_t got = ::read(fd, text, sizeof text);
  ::close(fd);
  return {text, got > 0 ? static_cast<std::size_t>(got) : 0};
}

/// Fields of /proc/self/stat by their number in proc(5), from 3 on. The second one is a name in
/// parentheses with any characters.
class Stat {
 public:
  Stat() : text_(read_proc("/proc/self/stat")) {
    const auto end = text_.rfind(')');
    text_.erase(0, end == std::string::npos ? text_.size() : end + 1);
  }
  double operator[](std::size_t number) const {
    std::size_t at = 0;
    for (std::size_t i = 3; i <= number && at != std::string::npos; ++i)
      at = text_.find(' ', at + (i == 3 ? 0 : 1));
    return at == std::string::npos ? 0 : std::strtod(text_.c_str() + at, nullptr);
  }

 private:
  std::string text_;
};

constexpr std::size_t kThreads = 20, kStartTime = 22, kResidentPages = 24;

double boot_unix_seconds() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

/// source  proc(5): since Linux 6.2 the size of /proc/self/fd is their number; counting thousands
///         of entries costs more than all the rest of a scrape
double open_descriptors() {
  struct stat about{};
  if (::stat("/proc/self/fd", &about) == 0 && about.st_size > 0)
    return static_cast<double>(about.st_size);
  std::error_code failed;
  double count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", failed), end; !failed && at != end;
       at.increment(failed))
    ++count;
  return count;
}

}  // namespace

double processor_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void add_process(Registry& registry, const std::string& program) {
  registry
      .gauge("centroid_build_info", "1; the labels name the program and its version.",
             {{"program", program}, {"version", kVersion}})
      .set(1);
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  // The names of Prometheus' client libraries, so that common dashboards find them.
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
    const double spent = processor_seconds();
    if (spent > cpu.value()) cpu.add(spent - cpu.value());
    memory.set(stat[kResidentPages] * page);
    descriptors.set(open_descriptors());
    threads.set(stat[kThreads]);
  });
}

}  // namespace centroid::metrics
