#pragma once

#include "server/api/view.h"
#include "server/coordinate/coordinator.h"
#include "server/membership/roster.h"
#include "server/service/worker_session.h"

namespace centroid::server {

/// When the other end's certificate is over; NaN: it showed none.
double certificate_end(transport::Session& session);

/// What operators see of a worker. `worker`: nullptr: it is gone.
WorkerView worker_view(const Member& member, const WorkerSession* worker,
                       const Coordinator& coordinator, TimePoint now);

}  // namespace centroid::server
