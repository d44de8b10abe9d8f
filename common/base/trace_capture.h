#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace centroid::trace {

/// The trace of one process over some time. Times are microseconds since 1970.
struct Capture {
  /// An interval of work. A period (an epoch, a round) contains stages and is no work itself.
  struct Span {
    double begin_us = 0, duration_us = 0;
    std::uint64_t round = 0;
    std::uint32_t lane = 0;  ///< of `lanes`
    bool is_period = false;
    std::string name;
    double end_us() const { return begin_us + duration_us; }
  };
  /// An event at one time.
  struct Mark {
    double at_us = 0;
    std::uint32_t lane = 0;
    std::string name, text;
  };
  /// A sampled number.
  struct Sample {
    double at_us = 0, value = 0;
    std::uint32_t track = 0;  ///< of `tracks`
  };
  std::string process;
  std::vector<std::string> lanes;
  std::vector<std::pair<std::string, std::string>> tracks;  ///< name, and the counted thing
  std::vector<Span> spans;                                  ///< ordered by their end
  std::vector<Mark> marks;
  std::vector<Sample> samples;
};

/// Its trace-event JSON, as chrome://tracing and Perfetto read it: each event after the first
/// begins with ",\n". Names of lanes from number `lanes_before` on; the name of the process only
/// with 0.
void append_events(std::string& out, const Capture& capture, long process_id,
                   std::size_t lanes_before = 0);

}  // namespace centroid::trace
