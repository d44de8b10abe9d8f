#include "server/store/duty_cycle.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/checkpoint/fault_point.h"

namespace centroid::server {

double DutyCycle::rest_seconds(double share, double busy, double passed, double& credit) {
  if (share >= 1) return 0;
  credit = std::min(credit + passed * share - busy, kBurst * share);
  if (credit >= 0) return 0;
  return -std::exchange(credit, 0.0) / share;
}

void DutyCycle::begin() {
  const std::lock_guard lock(mutex_);
  is_hurried_ = false;
  has_begun_ = false;
  credit_ = kBurst * share_;
}

void DutyCycle::rest() {
  const double busy = thread_seconds();
  if (has_begun_) {
    const double passed = std::chrono::duration<double>(now() - ended_).count();
    const std::chrono::duration<double> length(rest_seconds(share_, busy - busy_, passed, credit_));
    if (length.count() > 0) fault::point("duty.rests");
    const auto until = now() + std::chrono::duration_cast<Duration>(length);
    std::unique_lock lock(mutex_);
    hurried_.wait_until(lock, until, [this] { return is_hurried_; });
  }
  has_begun_ = true;
  busy_ = busy;
  ended_ = now();
}

void DutyCycle::hurry() {
  {
    const std::lock_guard lock(mutex_);
    is_hurried_ = true;
  }
  hurried_.notify_all();
}

}  // namespace centroid::server
