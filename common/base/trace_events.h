#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/base/trace_capture.h"

/// What a trace has beside stages (trace.h): epochs and rounds, spans with names of their own, what
/// happened, and what the process and its GPUs took.
///
/// bounds  4096 marks, 16,384 samples; 255 tracks, further ones are one
/// thread  any
namespace centroid::trace {

/// What has stages within it, and is no work itself.
enum class Period : std::uint8_t { kEpoch, kRound };
inline constexpr std::array kPeriodNames = {"epoch", "round"};

/// A row of the picture, as Lane; the same name gives the same row.
class EventLane {
 public:
  explicit EventLane(std::string_view name);
  /// `number`: the round's, or the epoch's
  void period(Period period, TimePoint begin, TimePoint end, std::uint64_t number) const;
  /// Work that is no stage of ours, as a training program names it. 255 names, further ones are
  /// one.
  void span(std::string_view name, TimePoint begin, TimePoint end) const;
  /// Something happens now; of `text` the first 200 bytes are kept.
  void mark(std::string_view name, std::string_view text) const;

 private:
  std::uint16_t number_;
};

/// From now on numbers are sampled, twice a second: processors that the process keeps busy, its
/// memory, and those of all sources. A second call does nothing. `write_to` does so, too.
void start_sampling();
/// Tell a number: the track's name, what is counted there, the value.
using Tell = std::function<void(std::string_view, std::string_view, double)>;
/// Ask `source` too, on a thread of the trace's. What it uses lives as long as the process.
void add_source(std::function<void(const Tell&)> source);

/// What ended, happened or was sampled within the last `seconds`, oldest first.
Capture capture(double seconds);

}  // namespace centroid::trace
