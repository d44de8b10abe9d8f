#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "common/base/metrics.h"
#include "common/base/result.h"
#include "transport/http/metrics_listener.h"
#include "worker/config.h"

namespace centroid::worker {

/// Set up metrics and traces, before the first traced thread starts.
Status begin_measuring(const WorkerConfig& config, metrics::Registry& registry);

/// Listener for Prometheus and probes; nullptr: not configured. `is_member` outlives it.
Result<std::unique_ptr<transport::MetricsListener>> listen_for_metrics(
    const WorkerConfig& config, metrics::Registry& registry, const std::atomic<bool>& is_member,
    std::vector<transport::MetricsView> views = {});

}  // namespace centroid::worker
