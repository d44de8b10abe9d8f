#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace centroid::server {

/// The time that rows age by: seconds since the tables were begun, while there was a server.
class TableClock {
 public:
  explicit TableClock(const Clock& clock) : clock_(clock), started_(clock.now()) {}

  std::uint64_t now() const {
    return at_start_ +
           static_cast<std::uint64_t>(
               std::chrono::duration_cast<std::chrono::seconds>(clock_.now() - started_).count());
  }
  /// This server begins with rows that have got so far.
  void begin_at(std::uint64_t seconds) { at_start_ = std::max(at_start_, seconds); }

 private:
  const Clock& clock_;
  const TimePoint started_;
  std::uint64_t at_start_ = 0;
};

}  // namespace centroid::server
