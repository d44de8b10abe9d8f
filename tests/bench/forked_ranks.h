#pragma once

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>

#include "transport/collective/group.h"

namespace centroid::bench {

/// Zeros at first, in memory that this process shares with those that it forks.
template <class T>
class Shared {
 public:
  explicit Shared(std::size_t count) : count_(count) {
    void* const memory = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("mmap");
      std::_Exit(3);
    }
    data_ = static_cast<T*>(memory);
  }
  ~Shared() { ::munmap(data_, count_ * sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator[](std::size_t i) const { return data_[i]; }
  std::span<T> all() const { return {data_, count_}; }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

enum class Path { kTcp, kTls, kSharedMemory };

/// Run `body` in a process for each rank, with a group of all over loopback. The caller has one
/// thread. A rank that fails ends the program.
void fork_ranks(std::uint32_t world, Path path,
                const std::function<Status(collective::Group&)>& body);

}  // namespace centroid::bench
