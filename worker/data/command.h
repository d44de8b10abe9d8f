#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::worker {

/// Run a program without a shell and return what it wrote to standard output.
///
/// The program is looked up in PATH and gets no input, a C locale and no other environment; its
/// messages go to our standard error.
///
/// thread  any; blocks
/// fails   not_found: no such program; resource_exhausted: more than `limit_bytes`;
///         deadline_exceeded; failed_precondition: the program exited with an error. The program
///         has ended when this returns.
Result<std::string> run_command(const std::vector<std::string>& arguments, std::size_t limit_bytes,
                                std::chrono::milliseconds timeout);

}  // namespace centroid::worker
