#pragma once

#include <functional>
#include <future>
#include <string>

#include <boost/asio/signal_set.hpp>

#include "common/async/io_thread.h"

namespace centroid::worker {

/// SIGINT and SIGTERM while it lives. The first one calls `stop` with its name, on the thread of
/// `io`; the second one ends the process.
class StopSignals {
 public:
  using Stop = std::function<void(const std::string& why)>;
  StopSignals(IoThread& io, Stop stop);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  static Task<void> watch(boost::asio::signal_set& signals, const Stop& stop);

  boost::asio::signal_set signals_;
  const Stop stop_;
  std::future<void> watching_;
};

}  // namespace centroid::worker
