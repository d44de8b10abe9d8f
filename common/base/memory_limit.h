#pragma once

#include <cstdint>
#include <string>

namespace centroid {

/// The memory that this process may use, and the source of the limit.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string source;  ///< "memory_limit", "the cgroup /x", "physical memory"
};
/// `setting` if it is not 0; else the least of the cgroups' limits, the physical memory and the
/// limit of the address space. `root` is the prefix of /proc and /sys.
MemoryLimit memory_limit(std::uint64_t setting, const std::string& root = "");

/// Bytes that are available now without swapping, as the kernel estimates, and at most the limit.
std::uint64_t available_memory(const std::string& root = "");

/// The largest resident memory of this process so far, in bytes; 0: unknown.
std::uint64_t peak_memory(const std::string& root = "");

}  // namespace centroid
