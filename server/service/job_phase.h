#pragma once

#include <string>

#include "common/base/clock.h"
#include "server/events/event_log.h"
#include "server/service/probe.h"

namespace centroid::server {

/// Of the job, as kJobStates (probe.h) names them.
enum class Phase {
  kWaiting,
  kInitializing,
  kTraining,
  kPaused,
  kFinished,
  kHalted,
  kStopping,
  kStandby,
  kStopped
};

/// The job's phase, why it is in it and since when. Metrics and events follow. Of one thread.
class JobPhase {
 public:
  JobPhase(const Clock& clock, EventLog& events, const Probe& probe)
      : clock_(clock), events_(events), probe_(probe), since_(clock.now()) {}

  Phase now() const { return phase_; }
  bool is(Phase phase) const { return phase_ == phase; }
  bool is_over() const { return is(Phase::kFinished) || is(Phase::kHalted); }
  bool waits_for_operator() const { return is(Phase::kPaused) || is(Phase::kStopped); }
  const std::string& reason() const { return reason_; }
  TimePoint since() const { return since_; }

  void set(Phase phase, std::string reason);
  /// The same phase has another reason.
  void explain(std::string reason) { set(phase_, std::move(reason)); }
  /// The server is ready: what it did before does not count.
  void begin() { since_ = clock_.now(); }

 private:
  const Clock& clock_;
  EventLog& events_;
  const Probe& probe_;
  Phase phase_ = Phase::kWaiting;
  std::string reason_ = "no worker has joined yet";
  TimePoint since_;
};

/// The process is to end, and how far that is.
struct StopRequest {
  bool is_requested = false;
  bool leaves_workers = false;  ///< nobody is told: workers wait for a server to come back
  std::string reason;
  bool rounds_ended = false;  ///< no round follows
  bool is_closing = false;    ///< the server takes nobody any more
};

}  // namespace centroid::server
