#pragma once

#include "server/config.h"

namespace centroid::server {

/// Exit statuses of centroid-server (docs/operations.md).
enum ExitStatus : int {
  kExitDone = 0,    ///< finished, or stopped in order
  kExitFailed = 1,  ///< could not start or go on: the log says why; another try may succeed
  kExitUsage = 2,   ///< wrong configuration or files: do not try again unchanged
  kExitHalted = 3,  ///< the job halted itself (non-finite gradients): do not try again unchanged
};

/// `schema` is bound to `config`, which REST may change. Build every part in order, run until the
/// job is over or a signal comes, join them. Blocks; returns the exit status.
int run_server(ServerConfig& config, config::Schema& schema);

}  // namespace centroid::server
