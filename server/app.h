#pragma once

#include "server/config/server_config.h"

namespace centroid::server {

/// A shard server takes the settings that concern its own process; the job's are its leader's.
/// fails invalid_argument: names every other setting that was given (`effective_json`: of the
/// schema), or the name that is missing. Without `join` all is well.
Status check_shard_settings(const ServerConfig& config, const std::string& effective_json);

/// `schema` is bound to `config`, which REST may change. Build every part in order, run until the
/// job is over or a signal comes, join them. Blocks; returns the exit status.
int run_server(ServerConfig& config, config::Schema& schema);

}  // namespace centroid::server
