#pragma once

#include <cstdint>
#include <string>

namespace centroid {

/// What this process may take, and by whose word.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string source;  ///< "memory_limit", "the cgroup /x", "physical memory"
};
/// `setting` when it is not 0; else the least of the cgroups' limits and the physical memory.
/// `root` stands before /proc and /sys.
MemoryLimit memory_limit(std::uint64_t setting, const std::string& root = "");

/// Bytes that could be taken now without swapping, as the kernel estimates them, and at most the
/// limit.
std::uint64_t available_memory(const std::string& root = "");

/// The most memory that this process has had resident at once, in bytes; 0: the system does not
/// say.
std::uint64_t peak_memory(const std::string& root = "");

}  // namespace centroid
