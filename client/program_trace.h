#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

/// Spans and marks of a training program, in one trace with the library's (common/base/trace.h). A
/// span belongs to its thread; spans of a thread are nested.
///
/// bounds  names of 1 to 64 bytes, of spans 255; 256 nested spans
/// thread  any
namespace centroid::client::program_trace {

/// Write all spans from now on to a file, until `close` or the end of the process.
/// fails  as trace::write_to
Status open(const std::string& path, std::string process, std::uint64_t limit_bytes);
/// Write the rest. A process cannot open a second file.
void close();

/// fails invalid_argument (name), resource_exhausted (spans that never end)
Status begin(std::string_view name);
/// End the innermost one.
/// fails  failed_precondition: none has begun
Status end();
Status mark(std::string_view name, std::string_view text);
/// Set this thread's lane; an open span appears in the lane in which it ends.
Status lane(std::string_view name);

}  // namespace centroid::client::program_trace
