#pragma once

#include <memory>

#include "common/base/result.h"
#include "transport/stream_layer.h"
#include "worker/config.h"

namespace centroid::worker {

/// TLS to the server, or among the workers, each of which accepts connections of the others;
/// nullptr: it is off.
///
/// fails  as transport::make_tls
Result<std::shared_ptr<transport::StreamLayer>> tls_layer(const WorkerConfig& config,
                                                          bool among_workers);

}  // namespace centroid::worker
