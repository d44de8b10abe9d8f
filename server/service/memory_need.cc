#include "server/service/memory_need.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace centroid::server {
namespace {

constexpr std::uint64_t kProcessBytes = std::uint64_t{32} << 20;

// cgroups without a limit say a number near 2^63.
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

std::uint64_t physical(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::uint64_t kib = 0;
  while (file >> name >> kib) {
    if (name == "MemTotal:") return kib * 1024;
    file.ignore(256, '\n');
  }
  return 0;
}

std::string gib(std::uint64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << static_cast<double>(bytes) / double(1 << 30) << " GiB";
  return text.str();
}

}  // namespace

MemoryNeed memory_need(const MemoryQuestion& q) {
  const std::uint64_t plane = q.parameters * sizeof(float);
  MemoryNeed need;
  need.parameters = q.parameters;
  need.plane_count = 2 + q.slots + (q.keeps_residual ? 1 : 0);
  need.planes = need.plane_count * plane;
  // With `late` each worker may bring a second one before the first is added.
  need.contributions =
      q.is_elastic ? 2 * q.workers * plane : std::min(q.credit_bytes, q.workers * plane);
  need.copies = std::min(q.snapshot_bytes, need.planes) + std::min(q.journal_copies, plane);
  if (q.compresses_results) need.copies += plane;  // payloads are no longer than that
  if (q.is_elastic)                                // results, and a state for who was left out
    need.copies += plane * (2 + (q.applies_on_worker ? q.slots : 0));
  need.base = kProcessBytes + 512 * q.tensors + 256 * q.chunks;
  return need;
}

MemoryLimit memory_limit(std::uint64_t setting, const std::string& root) {
  if (setting > 0) return {setting, "memory_limit"};
  MemoryLimit least{kNoLimit, "nothing"};
  if (const std::uint64_t bytes = physical(root); bytes > 0) least = {bytes, "the physical memory"};
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
  return least;
}

Status check_memory(const MemoryNeed& need, const MemoryLimit& limit) {
  if (need.total() <= limit.bytes) return {};
  return Error(ErrorCode::kFailedPrecondition,  // trying again does not help
               "the model has " + std::to_string(need.parameters) + " parameters and needs " +
                   std::to_string(need.total()) + " bytes (" + gib(need.total()) + ") here, " +
                   limit.source + " allows " + std::to_string(limit.bytes) + " (" +
                   gib(limit.bytes) + "). It is made of " + std::to_string(need.plane_count) +
                   " planes (parameters, next version, optimizer slots) " + gib(need.planes) +
                   ", contributions under way " + gib(need.contributions) +
                   ", copies of checkpoint and results " + gib(need.copies) +
                   ". Take an optimizer with fewer slots, a smaller model, or another machine; "
                   "memory_limit overrides the limit");
}

}  // namespace centroid::server
