#pragma once

#include <mutex>

#include "common/base/thread.h"

namespace centroid::server {

/// Limits the work of one thread to a share of the time, in small pieces, so that other threads
/// find the processor free.
class DutyCycle {
 public:
  /// `share` of one processor; 1 and more: no rests.
  explicit DutyCycle(double share) : share_(share) {}

  /// A new work begins, for which no thread waits yet; the one before is over.
  void begin();

  /// On the working thread, between pieces: sleeps until its processor time is at most its share of
  /// the elapsed time, beyond kBurst. Not after `hurry`.
  void rest();
  /// Any thread: a thread waits for the work. A rest ends at once, and there are no more.
  void hurry();

  /// Seconds whose share may be used at once: short work never rests.
  static constexpr double kBurst = 0.25;
  /// How long to rest after `busy` seconds of processor time within `passed` seconds. `credit`:
  /// unused processor time in seconds.
  static double rest_seconds(double share, double busy, double passed, double& credit);

 private:
  const double share_;
  bool has_begun_ = false;  // the thread at work only, as the three below
  double credit_ = kBurst * share_;
  double busy_ = 0;  // its processor time at the end of the last rest
  TimePoint ended_;  // of the last rest
  Mutex mutex_;      // guards all below
  Condition hurried_;
  bool is_hurried_ = false;
};

}  // namespace centroid::server
