#pragma once

#include <algorithm>
#include <optional>

#include "common/base/clock.h"

namespace centroid {

/// Detects that this process stood still, stopped or with its machine. Messages of that time are
/// still unread, so no peer was silent before it continued. Pure.
class Standstill {
 public:
  /// Call at least once every `longest`: a longer gap is a standstill.
  void look(TimePoint now, Duration longest) {
    if (last_check_ && now - *last_check_ > longest) end_ = now;
    last_check_ = now;
  }
  /// For a peer that was last seen `then`: since when its silence counts.
  TimePoint since(TimePoint then) const { return std::max(then, end_); }

 private:
  std::optional<TimePoint> last_check_;
  TimePoint end_ = TimePoint::min();  ///< when it continued; never yet
};

}  // namespace centroid
