#pragma once

#include <string>
#include <string_view>

/// Fault points (common/checkpoint/fault_point.h) of this process.
namespace centroid::test {

/// How often this process has reached the point so far. thread: any
int times_reached(std::string_view point);

/// Blocks each thread that reaches a point, from the `count`th time from now on, for its lifetime.
///
/// thread  any; one at a time for each point
class HeldPoint {
 public:
  explicit HeldPoint(std::string name, int count = 1);
  ~HeldPoint();
  HeldPoint(const HeldPoint&) = delete;
  HeldPoint& operator=(const HeldPoint&) = delete;
  /// Block until a thread is stopped there; false past two minutes.
  bool wait_reached() const;

 private:
  const std::string name_;
};

}  // namespace centroid::test
