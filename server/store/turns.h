#pragma once

#include <boost/asio/post.hpp>

#include "common/async/task.h"

namespace centroid::server {

/// Long work on the service thread yields to sockets and timers after this many chunks.
inline constexpr std::size_t kChunksPerTurn = 4;

inline Task<void> yield(Executor executor) {
  co_await boost::asio::post(executor, boost::asio::use_awaitable);
}

}  // namespace centroid::server
