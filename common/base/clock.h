#pragma once

#include <atomic>
#include <chrono>

namespace centroid {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
using Deadline = TimePoint;  ///< absolute, monotonic; never sent to another machine

/// Monotonic time of the calling thread's host (host.h); without one the operating system's.
TimePoint now();
/// Seconds since 1970, for humans and files; never compared between machines.
double unix_seconds();

/// Source of monotonic time. Decisions take a TimePoint; only drivers have a Clock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  virtual double unix_seconds() const = 0;  ///< as the function above
};

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return centroid::now(); }
  double unix_seconds() const override { return centroid::unix_seconds(); }
};

/// Time that moves only when set. Thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }
  double unix_seconds() const override {
    return std::chrono::duration<double>(Duration(ticks_.load())).count();
  }
  void advance(Duration by) { ticks_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> ticks_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace centroid
