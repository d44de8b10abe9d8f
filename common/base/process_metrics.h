#pragma once

#include <string>

#include "common/base/metrics.h"

namespace centroid::metrics {

/// User and system time of this process.
double processor_seconds();

/// Add `centroid_build_info` and the use of the process: processor time, resident memory, open
/// descriptors, threads, start time. Read from /proc at each scrape; without /proc the gauges stay
/// 0.
void add_process(Registry& registry, const std::string& program);

}  // namespace centroid::metrics
