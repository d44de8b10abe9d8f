#pragma once

#include "worker/config.h"

namespace centroid::worker {

/// Load data and model, join, train until it is over. Blocks; returns the exit status.
int run_worker(const WorkerConfig& config);

}  // namespace centroid::worker
