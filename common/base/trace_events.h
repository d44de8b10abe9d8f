#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/base/trace_capture.h"

/// Traces beyond stages (trace.h): epochs and rounds, named spans, marks, and the use of
/// processors, memory and GPUs.
///
/// bounds  4096 marks, 16,384 samples; 255 tracks, further ones share one
/// thread  any
namespace centroid::trace {

/// Contains stages, and is no work itself.
enum class Period : std::uint8_t { kEpoch, kRound };
inline constexpr std::array kPeriodNames = {"epoch", "round"};

/// A row of the picture, like Lane; the same name returns the same row.
class EventLane {
 public:
  explicit EventLane(std::string_view name);
  /// `number`: the round's, or the epoch's
  void period(Period period, TimePoint begin, TimePoint end, std::uint64_t number) const;
  /// A span of work that a training program names. 255 names, further ones share one.
  void span(std::string_view name, TimePoint begin, TimePoint end) const;
  /// Record an event now, with the first 200 bytes of `text`.
  void mark(std::string_view name, std::string_view text) const;

 private:
  std::uint16_t number_;
};

/// Start to sample numbers twice a second: busy processors, memory, and those of all sources.
/// Repeated calls have no effect. `write_to` calls it too.
void start_sampling();
/// Records a number: name of the track, what is counted, value.
using RecordSample = std::function<void(std::string_view, std::string_view, double)>;
/// Sample `source` too, on a thread of the trace. What it uses must live as long as the process.
void add_source(std::function<void(const RecordSample&)> source);

/// What ended, happened or was sampled within the last `seconds`, oldest first.
Capture capture(double seconds);

}  // namespace centroid::trace
