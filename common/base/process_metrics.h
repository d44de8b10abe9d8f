#pragma once

#include <string>

#include "common/base/metrics.h"

namespace centroid::metrics {

/// Add `centroid_build_info` and what the process costs: processor time, resident memory, open
/// descriptors, threads, start time. Read when scraped, from /proc; where that is missing the
/// gauges stay 0.
void add_process(Registry& registry, const std::string& program);

}  // namespace centroid::metrics
