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

/// Watches whether the training thread answers. Each check sends a probe, unless the last one is
/// still unanswered.
///
/// thread  check: one; the answer: any
class Pulse {
 public:
  /// Called on the watched thread, also after the Pulse is gone.
  using Answered = std::function<void()>;

  /// `probe` does not block.
  Pulse(std::function<void(Answered)> probe, std::chrono::milliseconds patience)
      : probe_(std::move(probe)), patience_(patience) {}

  /// fails unavailable: no answer for longer than `patience`
  Status check() {
    const TimePoint now = centroid::now();
    if (!is_probed_->exchange(true)) {
      since_ = now;
      probe_([is_probed = is_probed_] { *is_probed = false; });
    }
    if (now - since_ <= patience_) return {};
    const auto silent = std::chrono::duration_cast<std::chrono::seconds>(now - since_);
    return Error(ErrorCode::kUnavailable,
                 "the service thread has not answered for " + std::to_string(silent.count()) +
                     " s: rounds make no progress; a supervisor may restart the process");
  }

 private:
  const std::function<void(Answered)> probe_;
  const std::chrono::milliseconds patience_;
  const std::shared_ptr<std::atomic<bool>> is_probed_ = std::make_shared<std::atomic<bool>>(false);
  TimePoint since_;
};

}  // namespace centroid
