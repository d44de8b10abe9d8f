#pragma once

#include <chrono>

#include "common/async/task_group.h"
#include "server/api/view.h"

namespace centroid::server {

/// Whether the thread on which all of training runs still answers: each look asks it, unless it has
/// not answered the last time.
///
/// thread  the server's executor; `group` is joined before this goes
class Pulse {
 public:
  Pulse(TaskGroup& group, ControlPlane& control, std::chrono::milliseconds patience)
      : group_(group), control_(control), patience_(patience) {}

  /// fails unavailable: it has not answered for longer than `patience`
  Status look() {
    const TimePoint now = std::chrono::steady_clock::now();
    if (!is_asked_) {
      is_asked_ = true;
      since_ = now;
      group_.spawn(ask());
    }
    if (now - since_ <= patience_) return {};
    const auto silent = std::chrono::duration_cast<std::chrono::seconds>(now - since_);
    return Error(ErrorCode::kUnavailable, "the service thread has not answered for " +
                                              std::to_string(silent.count()) +
                                              " s: rounds stand still; whoever watches over the "
                                              "process may start it again");
  }

 private:
  Task<void> ask() {
    co_await control_.ping();
    is_asked_ = false;
  }

  TaskGroup& group_;
  ControlPlane& control_;
  const std::chrono::milliseconds patience_;
  bool is_asked_ = false;
  TimePoint since_;
};

}  // namespace centroid::server
