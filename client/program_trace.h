#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

/// Spans and marks of a training program, in one trace with the library's (common/base/trace.h).
/// A span belongs to the thread that began it; those of a thread are within each other.
///
/// bounds  names of 1 to 64 bytes, of spans 255; 256 spans within each other
/// thread  any
namespace centroid::client::program_trace {

/// All spans from now on go to a file, until `close` or the end of the process.
/// fails  as trace::write_to
Status open(const std::string& path, std::string process, std::uint64_t limit_bytes);
/// Write what is left. There is no second file in a process.
void close();

/// fails invalid_argument (name), resource_exhausted (spans that never end)
Status begin(std::string_view name);
/// The innermost one.
/// fails  failed_precondition: none has begun
Status end();
Status mark(std::string_view name, std::string_view text);
/// This thread's, from now on; a span that has begun is told in the lane in which it ends.
Status lane(std::string_view name);

}  // namespace centroid::client::program_trace
