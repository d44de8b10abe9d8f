#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace centroid::test {

/// Lets a test wait for what other threads report, instead of asking again and again.
class Progress {
 public:
  void notify() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }

  /// Block until `is_true`, which is asked after each `notify`. False after a minute.
  template <class F>
  bool await(F is_true) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      const std::uint64_t seen = count_;
      lock.unlock();  // it may take locks of what notifies
      if (is_true()) return true;
      lock.lock();
      if (!changed_.wait_until(lock, deadline, [&] { return count_ != seen; })) return false;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t count_ = 0;
};

}  // namespace centroid::test
