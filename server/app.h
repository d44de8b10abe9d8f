#pragma once

#include "server/config/server_config.h"

namespace centroid::server {

/// Exit statuses of centroid-server (docs/how-to/runbooks.md#exit-statuses).
enum ExitStatus : int {
  kExitDone = 0,    ///< finished, or stopped in order
  kExitFailed = 1,  ///< could not start or go on: the log says why; another try may succeed
  kExitUsage = 2,   ///< wrong configuration or files: do not try again unchanged
  kExitHalted = 3,  ///< the job halted itself (non-finite gradients): do not try again unchanged
};

/// A shard server takes the settings that concern its own process; the job's are its leader's.
/// fails invalid_argument: names every other setting that was given (`effective_json`: of the
/// schema), or the name that is missing. Without `join` all is well.
Status check_shard_settings(const ServerConfig& config, const std::string& effective_json);

/// `schema` is bound to `config`, which REST may change. Build every part in order, run until the
/// job is over or a signal comes, join them. Blocks; returns the exit status.
int run_server(ServerConfig& config, config::Schema& schema);

}  // namespace centroid::server
