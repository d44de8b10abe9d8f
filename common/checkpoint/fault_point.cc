#include "common/checkpoint/fault_point.h"

#ifdef CENTROID_FAULT_POINTS

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace centroid::fault {
namespace {

struct Settings {
  Settings() {
    const char* const log = std::getenv("CENTROID_TEST_FAULT_LOG");  // lint-ok: of tests only
    const char* const fault = std::getenv("CENTROID_TEST_FAULT");    // lint-ok: of tests only
    const char* const hold = std::getenv("CENTROID_TEST_HOLD");      // lint-ok: of tests only
    if (log != nullptr) log_path = log;
    if (hold != nullptr) {
      const std::string_view both(hold);
      const std::size_t middle = both.find(':');
      held = both.substr(0, middle);
      if (middle != std::string_view::npos) hold_path = both.substr(middle + 1);
    }
    if (fault == nullptr) return;
    const std::string_view text(fault);
    const std::size_t colon = text.find(':');
    name = text.substr(0, colon);
    if (colon != std::string_view::npos)
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), count);
  }
  std::string name, log_path, held, hold_path;
  int count = 1;
};

const Settings& settings_of_tests() {
  static const Settings settings;
  return settings;
}

/// For which time the name is reached; the first is told to the log.
int reached(const Settings& settings, std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, int, std::less<>> counts;
  const std::lock_guard lock(mutex);
  const int count = ++counts[std::string(name)];
  if (count == 1 && !settings.log_path.empty()) {
    const int fd = ::open(settings.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    const std::string line = std::string(name) + "\n";
    if (fd >= 0 && ::write(fd, line.data(), line.size()) < 0) std::abort();
    if (fd >= 0) ::close(fd);
  }
  return count;
}

}  // namespace

bool is_held(std::string_view name) {
  const Settings& settings = settings_of_tests();
  return name == settings.held && ::access(settings.hold_path.c_str(), F_OK) == 0;
}

void point(std::string_view name) {
  const Settings& settings = settings_of_tests();
  const bool counts = !settings.name.empty() || !settings.log_path.empty();
  const int count = counts ? reached(settings, name) : 0;
  constexpr int kMostLooks = 12'000;  // a minute
  for (int i = 0; i < kMostLooks && is_held(name); ++i) ::usleep(5000);
  if (counts && name == settings.name && count == settings.count) ::kill(::getpid(), SIGKILL);
}

void point(Stem stem, std::string_view what) { point((std::string(stem.name) + ".").append(what)); }

}  // namespace centroid::fault

#endif
