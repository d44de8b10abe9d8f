#pragma once

#include <memory>

#include "transport/transport.h"

namespace centroid::transport {

/// A name space of in-process endpoints, shared by the transports of several threads.
class InProcessHub;
std::shared_ptr<InProcessHub> make_inprocess_hub();
/// The same rules within one process; both ends may live on different executors.
std::unique_ptr<Transport> make_inprocess(Executor executor, std::shared_ptr<InProcessHub> hub,
                                          TransportOptions options = {});

}  // namespace centroid::transport
