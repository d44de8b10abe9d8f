#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/host.h"

namespace centroid {

/// Low: it has a tenth of the processor time of one that also wants the processor.
enum class ThreadPriority { kNormal, kLow };

/// A thread of the calling thread's host: in a simulation a fiber, otherwise a std::thread. Joined
/// by its destructor.
class Thread {
 public:
  Thread() = default;
  Thread(std::string name, std::function<void()> body,
         ThreadPriority priority = ThreadPriority::kNormal);
  ~Thread() { join(); }
  Thread(Thread&& other) noexcept
      : real_(std::move(other.real_)), simulated_(std::exchange(other.simulated_, 0)) {}
  Thread& operator=(Thread&& other) noexcept;
  bool joinable() const;
  void join();  ///< no effect without a thread

 private:
  std::thread real_;
  Host::Number simulated_ = 0;
};

/// A mutex of the calling thread's host. A std::mutex suffices if no wait happens under it.
class Mutex {
 public:
  void lock();
  void unlock();

 private:
  friend class Condition;
  std::mutex real_;
  bool is_locked_ = false;  ///< in a simulation
};

/// A condition variable of the calling thread's host. A wait may end spuriously.
class Condition {
 public:
  void wait(std::unique_lock<Mutex>& lock);
  /// False: the deadline passed.
  bool wait_until(std::unique_lock<Mutex>& lock, TimePoint deadline);
  void notify_all();

  template <class Predicate>
  void wait(std::unique_lock<Mutex>& lock, Predicate is_true) {
    while (!is_true()) wait(lock);
  }
  /// Returns whether the predicate is true at the end.
  template <class Predicate>
  bool wait_until(std::unique_lock<Mutex>& lock, TimePoint deadline, Predicate is_true) {
    while (!is_true())
      if (!wait_until(lock, deadline)) return is_true();
    return true;
  }
  template <class Predicate>
  bool wait_for(std::unique_lock<Mutex>& lock, Duration time, Predicate is_true) {
    return wait_until(lock, now() + time, std::move(is_true));
  }

 private:
  std::condition_variable real_;
};

unsigned core_count();    ///< processors
double thread_seconds();  ///< processor time of the calling thread; 0 in a simulation

}  // namespace centroid
