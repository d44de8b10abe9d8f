#pragma once

#include <mutex>

#include "common/base/thread.h"

namespace centroid::server {

/// Keeps the work of one thread to a share of the time, in small pieces, so that others find the
/// processor free.
class DutyCycle {
 public:
  /// `share` of one processor; 1 and more: no rests.
  explicit DutyCycle(double share) : share_(share) {}

  /// A new work begins, for which nobody waits yet; the one before is over.
  void begin();

  /// The thread at work, between pieces: sleeps until the processor time that it has taken is at
  /// most its share of the time that has passed, but for what kBurst allows. Not once hurried.
  void rest();
  /// Any thread: somebody waits for the work. A rest ends at once, and there are no more.
  void hurry();

  /// Seconds whose share may be taken at once: small works never rest.
  static constexpr double kBurst = 0.25;
  /// How long to rest after `busy` seconds of processor time within `passed` seconds. `credit` is
  /// what may still be taken without, in seconds of processor time.
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
