#pragma once

#include <string>

#include "common/base/metrics.h"

namespace centroid::worker {

/// Memory and utilisation of this machine's NVIDIA GPUs, read at each request for metrics and as
/// samples of the trace, through the driver's management library. Without that library, or without
/// a GPU, nothing is added.
///
/// library  its name or path
/// returns  the number of GPUs
/// source   NVIDIA Management Library (NVML) API reference
std::size_t add_gpus(metrics::Registry& registry, const std::string& library = "libnvidia-ml.so.1");

}  // namespace centroid::worker
