#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace centroid::trace {

/// What one process did in some time, as its trace has it. Times are microseconds since 1970.
struct Capture {
  /// Something that lasted. A period (an epoch, a round) has stages of work within it, and is no
  /// work itself.
  struct Span {
    double begin_us = 0, duration_us = 0;
    std::uint64_t round = 0;
    std::uint32_t lane = 0;  ///< of `lanes`
    bool is_period = false;
    std::string name;
    double end_us() const { return begin_us + duration_us; }
  };
  /// Something that happened.
  struct Mark {
    double at_us = 0;
    std::uint32_t lane = 0;
    std::string name, text;
  };
  /// A number as it was.
  struct Sample {
    double at_us = 0, value = 0;
    std::uint32_t track = 0;  ///< of `tracks`
  };
  std::string process;
  std::vector<std::string> lanes;
  std::vector<std::pair<std::string, std::string>> tracks;  ///< name, and what is counted
  std::vector<Span> spans;                                  ///< in the order in which they ended
  std::vector<Mark> marks;
  std::vector<Sample> samples;
};

/// Trace-event JSON of it, as chrome://tracing and Perfetto read it: events behind ",\n", but for
/// the first. Names of lanes from number `lanes_before` on; that of the process with 0.
void append_events(std::string& out, const Capture& capture, long process_id,
                   std::size_t lanes_before = 0);

}  // namespace centroid::trace
