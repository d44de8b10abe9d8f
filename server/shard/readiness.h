#pragma once

#include <mutex>
#include <string>

#include "common/base/result.h"

namespace centroid::server {

/// Whether a shard server can serve, and if not, why.
///
/// thread  any
class Readiness {
 public:
  void set_ready() {
    const std::lock_guard lock(mutex_);
    if (!is_leaving_) why_not_.clear();
  }
  void set_not_ready(std::string why) {
    const std::lock_guard lock(mutex_);
    why_not_ = std::move(why);
  }
  /// Mark that the server drains: it never becomes ready again.
  void leave(std::string why) {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    why_not_ = std::move(why);
  }
  bool is_leaving() const {
    const std::lock_guard lock(mutex_);
    return is_leaving_;
  }
  /// fails  unavailable: why not
  Status check() const {
    const std::lock_guard lock(mutex_);
    if (why_not_.empty()) return {};
    return Error(ErrorCode::kUnavailable, "not ready: " + why_not_);
  }

 private:
  mutable std::mutex mutex_;  // guards the next members
  std::string why_not_ = "no leader has answered yet";
  bool is_leaving_ = false;
};

}  // namespace centroid::server
