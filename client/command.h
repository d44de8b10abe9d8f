#pragma once

#include <CLI/CLI.hpp>

/// centroidctl: each file beside this one has one `add_...` that adds its subcommands to the
/// program (main.cc lists them). Answers go to stdout, errors to stderr.
namespace centroid::client {

/// Exit statuses of centroidctl (docs/how-to/monitor.md#centroidctl).
enum ExitStatus : int {
  kExitDone = 0,
  kExitFailed = 1,       ///< answered with an error, or a check failed
  kExitUsage = 2,        ///< the command line itself
  kExitUnreachable = 3,  ///< no answer of the server
};

}  // namespace centroid::client
