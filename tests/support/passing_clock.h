#pragma once

#include <atomic>

#include "common/base/clock.h"

namespace centroid::test {

/// The system's time, which a test can move forward, as after a suspension of the machine.
class PassingClock final : public Clock {
 public:
  TimePoint now() const override { return system_.now() + Duration(ahead_.load()); }
  double unix_seconds() const override { return system_.unix_seconds(); }
  void advance(Duration by) { ahead_.fetch_add(by.count()); }

 private:
  SystemClock system_;
  std::atomic<Duration::rep> ahead_{0};
};

}  // namespace centroid::test
