#pragma once

#include <condition_variable>
#include <mutex>

#include "common/base/clock.h"

namespace centroid::server {

/// Keeps the work of one thread to a share of the time, in small pieces, so that others find the
/// processor free.
class DutyCycle {
 public:
  /// `share` of one processor; 1 and more: no rests.
  explicit DutyCycle(double share) : share_(share) {}

  /// The thread at work, between pieces: sleeps until the processor time that it took since the
  /// rest before is at most its share of the time that has passed. Not once hurried.
  void rest();
  /// Any thread: somebody waits for the work. A rest ends at once, and there are no more.
  void hurry();

  /// How long to rest after `busy` seconds of processor time within `passed` seconds.
  static double rest_seconds(double share, double busy, double passed);

 private:
  const double share_;
  bool has_begun_ = false;  // the thread at work only, as the two below
  double busy_ = 0;         // its processor time at the end of the last rest
  TimePoint ended_;         // of the last rest
  std::mutex mutex_;        // guards all below
  std::condition_variable hurried_;
  bool is_hurried_ = false;
};

}  // namespace centroid::server
