#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace centroid {

/// A few threads that run the parts of one loop together and then wait for the next.
///
/// thread  `run` from one thread at a time        owns  the helper threads
class ThreadPool {
 public:
  /// `threads` in all, the caller's included; 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }
  /// Call part(0) here and part(1) ... part(threads() - 1) elsewhere; returns when all are done.
  /// `part` must not throw.
  void run(const std::function<void(int)>& part);

 private:
  void help(int index);

  std::atomic<std::uint32_t> turn_{0};  // of the loop that runs or ran last
  std::atomic<std::uint32_t> busy_{0};  // helpers that have not finished it
  const std::function<void(int)>* part_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace centroid
