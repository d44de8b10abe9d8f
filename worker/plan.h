#pragma once

#include "worker/config.h"

namespace centroid::worker {

/// Print memory and time of each way to divide the model among `world` workers, and recommend one;
/// as JSON with `log.format` json. Returns the exit status: kExitFailed if none fits.
int print_plan(const WorkerConfig& config);

}  // namespace centroid::worker
