#pragma once

#include <CLI/CLI.hpp>

/// centroidctl: each file beside this one offers one `add_...` that hangs its subcommands into the
/// program (main.cc lists them). Answers go to stdout, errors to stderr.
namespace centroid::client {

/// Exit statuses of centroidctl (docs/how-to/monitor.md#centroidctl).
enum ExitStatus : int {
  kExitDone = 0,
  kExitFailed = 1,  ///< asked and answered with an error, or something that was checked is wrong
  kExitUsage = 2,   ///< the command line itself
  kExitUnreachable = 3,  ///< no answer of the server
};

}  // namespace centroid::client
