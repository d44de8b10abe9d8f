#pragma once

#include <algorithm>
#include <optional>

#include "common/base/clock.h"

namespace centroid {

/// Whether this process stood still, stopped or with its machine: what others sent meanwhile is yet
/// to be read, so nobody was silent before it went on. Pure.
class Standstill {
 public:
  /// Looked at `now`, and again before `longest` has passed if it runs.
  void look(TimePoint now, Duration longest) {
    if (looked_ && now - *looked_ > longest) end_ = now;
    looked_ = now;
  }
  /// Of something that was last seen `then`: since when its silence counts.
  TimePoint since(TimePoint then) const { return std::max(then, end_); }

 private:
  std::optional<TimePoint> looked_;
  TimePoint end_ = TimePoint::min();  ///< when it went on; never yet
};

}  // namespace centroid
