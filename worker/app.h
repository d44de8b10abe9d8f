#pragma once

#include "worker/config.h"

namespace centroid::worker {

/// Exit statuses of centroid-worker (docs/how-to/runbooks.md#exit-statuses).
enum ExitStatus : int {
  kExitDone = 0,    ///< the job ended, or the worker was stopped or drained
  kExitFailed = 1,  ///< the server was unreachable or an error occurred: another try may succeed
  kExitUsage = 2,   ///< wrong configuration, data or model: do not restart unchanged
  kExitHalted = 3,  ///< the job halted itself: do not restart unchanged
};

/// Load data and model, join, train until it is over. Blocks; returns the exit status.
int run_worker(const WorkerConfig& config);

}  // namespace centroid::worker
