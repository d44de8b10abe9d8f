#pragma once

#include "worker/config.h"

namespace centroid::worker {

/// Exit statuses of centroid-worker (docs/how-to/runbooks.md#exit-statuses).
enum ExitStatus : int {
  kExitDone = 0,  ///< the job is over, or the worker was stopped or drained in order
  kExitFailed =
      1,           ///< the server was not to be reached or something broke: another try may succeed
  kExitUsage = 2,  ///< wrong configuration, data or model: do not try again unchanged
  kExitHalted = 3,  ///< the job halted itself: do not try again unchanged
};

/// Load data and model, join, train until it is over. Blocks; returns the exit status.
int run_worker(const WorkerConfig& config);

}  // namespace centroid::worker
