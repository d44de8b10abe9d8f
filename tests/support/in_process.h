#pragma once

#include <memory>
#include <string>

#include "tests/support/cluster.h"
#include "tests/support/in_process_transport.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {

/// Base of fixtures that run clusters one after the other in one process, each with its own run
/// directory.
class InProcess {
 protected:
  TestServer::TransportFactory transports() const {
    return [hub = hub_](Executor executor) { return transport::make_inprocess(executor, hub); };
  }
  /// Config of a server that ends with its job.
  server::ServerConfig config_of_own() {
    server::ServerConfig c;
    c.run_dir = directory_.path() / std::to_string(++runs_);
    c.leaving.when_finished = true;
    return c;
  }

  std::shared_ptr<transport::InProcessHub> hub_ = transport::make_inprocess_hub();
  TemporaryDirectory directory_;
  int runs_ = 0;
};

}  // namespace centroid::test
