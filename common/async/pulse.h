#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace centroid {

/// Whether the thread on which all of training runs still answers: each look asks it, unless it has
/// not answered the last time.
///
/// thread  the looks: one; the answer: any
class Pulse {
 public:
  /// To be called on the thread that is watched, also when the Pulse is gone.
  using Answered = std::function<void()>;

  /// `ask` does not wait.
  Pulse(std::function<void(Answered)> ask, std::chrono::milliseconds patience)
      : ask_(std::move(ask)), patience_(patience) {}

  /// fails unavailable: it has not answered for longer than `patience`
  Status look() {
    const TimePoint now = centroid::now();
    if (!is_asked_->exchange(true)) {
      since_ = now;
      ask_([is_asked = is_asked_] { *is_asked = false; });
    }
    if (now - since_ <= patience_) return {};
    const auto silent = std::chrono::duration_cast<std::chrono::seconds>(now - since_);
    return Error(ErrorCode::kUnavailable, "the service thread has not answered for " +
                                              std::to_string(silent.count()) +
                                              " s: rounds stand still; whoever watches over the "
                                              "process may start it again");
  }

 private:
  const std::function<void(Answered)> ask_;
  const std::chrono::milliseconds patience_;
  const std::shared_ptr<std::atomic<bool>> is_asked_ = std::make_shared<std::atomic<bool>>(false);
  TimePoint since_;
};

}  // namespace centroid
