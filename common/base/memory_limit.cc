#include "common/base/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace centroid {
namespace {

// cgroups without a limit report a number near 2^63.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::uint64_t value = 0;
  if (!(file >> text)) return 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value < kNoLimit ? value : 0;
}

/// The least limit from the group `path` up to the root; names the group.
void climb(const std::string& mount, std::string path, const std::string& file,
           MemoryLimit& least) {
  for (;;) {
    const std::uint64_t limit = number_in(mount + path + "/" + file);
    if (limit > 0 && limit < least.bytes)
      least = {limit, "the cgroup " + (path.empty() ? std::string("/") : path)};
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

/// Bytes in a line "MemTotal:  123 kB" of a file; 0 if there is none.
std::uint64_t bytes_in(const std::string& path, const std::string& line) {
  std::ifstream file(path);
  for (std::string name; file >> name;) {
    std::uint64_t kib = 0;
    if (name == line) return file >> kib ? kib * 1024 : 0;
    file.ignore(4096, '\n');
  }
  return 0;
}

std::uint64_t meminfo(const std::string& root, const std::string& line) {
  return bytes_in(root + "/proc/meminfo", line);
}

/// The limit of this process's address space, less what is reserved there without data.
void limit_address_space(const std::string& root, MemoryLimit& least) {
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return;
  const std::string status = root + "/proc/self/status";
  const std::uint64_t mapped = bytes_in(status, "VmSize:"), data = bytes_in(status, "VmRSS:");
  const std::uint64_t reserved =
      std::min<std::uint64_t>(mapped - std::min(data, mapped), space.rlim_cur);
  if (space.rlim_cur - reserved < least.bytes)
    least = {space.rlim_cur - reserved, "the limit of the address space (ulimit -v)"};
}

}  // namespace

MemoryLimit memory_limit(std::uint64_t setting, const std::string& root) {
  if (setting > 0) return {setting, "memory_limit"};
  MemoryLimit least{kNoLimit, "nothing"};
  if (const std::uint64_t bytes = meminfo(root, "MemTotal:"); bytes > 0)
    least = {bytes, "the physical memory"};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(1, ',');  // appended to: g++ 12 sees an overlap in "," + substr
    controllers.append(line, first + 1, second - first - 1) += ',';
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") climb(root + "/sys/fs/cgroup", path, "memory.max", least);
    if (controllers.find(",memory,") != std::string::npos)
      climb(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", least);
  }
  limit_address_space(root, least);
  return least;
}

std::uint64_t available_memory(const std::string& root) {
  return std::min(meminfo(root, "MemAvailable:"), memory_limit(0, root).bytes);
}

std::uint64_t peak_memory(const std::string& root) {
  return bytes_in(root + "/proc/self/status", "VmHWM:");
}

}  // namespace centroid
