#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"

/// Records when this process did what: the stages of the gradient path, in memory for a while, and
/// on request in a file.
///
/// form    trace-event JSON, as chrome://tracing and Perfetto read it: one complete event a span, a
///         thread per lane; microseconds since 1970, so that files of several processes fit
///         together
/// bounds  the newest 65,536 spans, 2 MiB; 255 lanes, further ones share one; the file's limit
/// thread  any; a span costs a lock that is hardly ever contended, ~50 ns
namespace centroid::trace {

/// Stages of the gradient path; metrics `..._stage_seconds` have the same names.
enum class Stage : std::uint8_t {
  kCompute,     ///< worker, per device: forward and backward
  kEvaluate,    ///< worker, per device: held-out data
  kEncode,      ///< a chunk through the codec: a worker's gradients, the server's results
  kSend,        ///< a chunk to the server, or a result to a worker, with waiting for credit
  kExchange,    ///< worker: additions with its peers
  kWait,        ///< worker: from the end of backward to new parameters
  kReceive,     ///< server: a chunk's payload
  kAggregate,   ///< server: a chunk decoded and added, in one pass
  kApply,       ///< the optimizer step, or results becoming the parameters
  kCheckpoint,  ///< server: writing one
  kDecode,      ///< worker: decoding the results of a round; part of apply
  kJournal,     ///< server: a round's end until the journal has it
};
inline constexpr std::array kStageNames = {"compute",  "evaluate",   "encode",  "send",
                                           "exchange", "wait",       "receive", "aggregate",
                                           "apply",    "checkpoint", "decode",  "journal"};
constexpr const char* to_string(Stage stage) {
  return kStageNames[static_cast<std::size_t>(stage)];
}

/// A row of the picture: a device, a worker's connection. Cheap to copy.
class Lane {
 public:
  Lane() = default;
  /// The lane of this name; the same name returns the same lane.
  explicit Lane(std::string_view name);
  void span(Stage stage, TimePoint begin, TimePoint end, std::uint64_t round = 0) const;

 private:
  std::uint16_t number_ = 0;
};

/// Set the name of the process in the output; before the first span.
void set_process(std::string name);

/// Spans that ended within the last `seconds`, oldest first, as one JSON document.
std::string to_json(double seconds);

/// Write spans from now on to a file too, twice a second, until the process ends. The file is
/// complete JSON after each write, also when the process is killed.
///
/// limit_bytes  further spans are left out, with one warning in the log
/// fails        invalid_argument (the file cannot be made); already_exists (a second file)
Status write_to(const std::string& path, std::uint64_t limit_bytes);

/// Write the rest and close the file.
void finish();

}  // namespace centroid::trace
