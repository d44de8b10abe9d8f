#include "tests/support/fault_points.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "common/checkpoint/fault_point.h"
#include "common/storage/storage.h"

/// The implementation that kills and blocks; see the header.
namespace centroid::fault {
namespace {

/// The text before the colon and after it.
std::pair<std::string_view, std::string_view> parts(std::string_view text, std::size_t colon) {
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Settings {
  Settings() {
    if (const char* const log = std::getenv("CENTROID_TEST_FAULT_LOG")) log_path = log;
    if (const char* const fault = std::getenv("CENTROID_TEST_FAULT")) {
      const std::string_view all(fault);
      const auto [point, times] = parts(all, all.find(':'));
      name = point;
      count = number(times).value_or(1);
    }
    if (const char* const hold = std::getenv("CENTROID_TEST_HOLD")) {
      const std::string_view all(hold);
      const auto [point, rest] = parts(all, all.find(':'));
      const auto [file, times] = parts(rest, rest.rfind(':'));
      held = point;
      held_from = number(times).value_or(1);
      hold_path = number(times) ? file : rest;
    }
  }
  std::string name, log_path, held, hold_path;
  int count = 1, held_from = 1;
};

const Settings& settings_of_tests() {
  static const Settings settings;
  return settings;
}

/// State of a point that was reached or is held.
struct Point {
  int count = 0;
  int held_from = 0;  // by a HeldPoint; 0: by none
  int stopped = 0;    // threads
};

struct Points {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Point, std::less<>> of;
};

Points& points() {
  static Points all;
  return all;
}

void append_to_log(const std::string& path, std::string_view name) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  const std::string line = std::string(name) + "\n";
  if (fd >= 0 && ::write(fd, line.data(), line.size()) < 0) std::abort();
  if (fd >= 0) ::close(fd);
}

/// A thread reaches the point: count, log and block. Returns the count so far.
int come(const Settings& settings, std::string_view name) {
  std::unique_lock lock(points().mutex);
  Point& point = points().of[std::string(name)];
  const int count = ++point.count;
  if (count == 1 && !settings.log_path.empty()) append_to_log(settings.log_path, name);
  const auto goes_on = [&] { return point.held_from == 0 || count < point.held_from; };
  if (goes_on()) return count;
  ++point.stopped;
  points().changed.notify_all();
  points().changed.wait(lock, goes_on);
  --point.stopped;
  return count;
}

/// Block this thread while the file exists, and create another file that reports it.
void stop(const Settings& settings, std::string_view name) {
  const std::string said = settings.hold_path + ".held";
  const int fd = ::open(said.c_str(), O_WRONLY | O_CREAT, 0644);
  if (fd < 0) std::abort();
  ::close(fd);
  constexpr int kMostPolls = 120'000;  // ten minutes
  for (int i = 0; i < kMostPolls && is_held(name); ++i)
    ::usleep(5000);  // lint-ok: the step of a poll under a deadline
  ::unlink(said.c_str());
}

}  // namespace

bool is_held(std::string_view name) {
  const Settings& settings = settings_of_tests();
  return name == settings.held && ::access(settings.hold_path.c_str(), F_OK) == 0;
}

void point(std::string_view name) {
  const Settings& settings = settings_of_tests();
  const int count = come(settings, name);
  if (count >= settings.held_from && is_held(name)) stop(settings, name);
  if (name == settings.name && count == settings.count) ::kill(::getpid(), SIGKILL);
}

void forbid_storage_here(const char* thread) {
  storage::ThreadState state = storage::exchange({});
  state.forbidden_for = thread;
  (void)storage::exchange(state);
}

void point(Stem stem, std::string_view what) { point((std::string(stem.name) + ".").append(what)); }

}  // namespace centroid::fault

namespace centroid::test {

int times_reached(std::string_view point) {
  const std::lock_guard lock(fault::points().mutex);
  const auto found = fault::points().of.find(point);
  return found == fault::points().of.end() ? 0 : found->second.count;
}

HeldPoint::HeldPoint(std::string name, int count) : name_(std::move(name)) {
  const std::lock_guard lock(fault::points().mutex);
  fault::Point& point = fault::points().of[name_];
  point.held_from = point.count + count;
}

HeldPoint::~HeldPoint() {
  {
    const std::lock_guard lock(fault::points().mutex);
    fault::points().of[name_].held_from = 0;
  }
  fault::points().changed.notify_all();
}

bool HeldPoint::wait_reached() const {
  std::unique_lock lock(fault::points().mutex);
  const auto is_reached = [&] { return fault::points().of[name_].stopped > 0; };
  return fault::points().changed.wait_for(lock, std::chrono::minutes(2), is_reached);
}

}  // namespace centroid::test
