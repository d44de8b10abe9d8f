#include "worker/stop_signals.h"

#include <csignal>
#include <cstdlib>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>

#include "common/base/log.h"

namespace centroid::worker {

StopSignals::StopSignals(IoThread& io, Stop stop)
    : signals_(io.context(), SIGINT, SIGTERM),
      stop_(std::move(stop)),
      watching_(
          boost::asio::co_spawn(io.context(), watch(signals_, stop_), boost::asio::use_future)) {}

StopSignals::~StopSignals() {
  boost::asio::post(signals_.get_executor(), [this] { signals_.cancel(); });
  watching_.get();
}

Task<void> StopSignals::watch(boost::asio::signal_set& signals, const Stop& stop) {
  for (int count = 0;; ++count) {
    const auto [failed, number] = co_await signals.async_wait(kAwait);
    if (failed) co_return;
    if (count > 0) std::_Exit(128 + number);
    const std::string why = number == SIGTERM ? "SIGTERM" : "SIGINT";
    log::info("worker.stop_requested", {{"why", why}});
    stop(why);
  }
}

}  // namespace centroid::worker
