#pragma once

#include <memory>
#include <string>

#include "common/base/metrics.h"
#include "transport/transport.h"
#include "worker/exchange/cluster_exchange.h"

namespace centroid::worker {

/// Where and how other workers connect to this one.
struct PeerSettings {
  std::string listen;     ///< HOST:PORT; "": a free port of the address that leads to the server
  std::string advertise;  ///< HOST:PORT for the others; "": the address of `listen`
  bool shared_memory = true;
  std::string congestion_control = "auto";
  std::shared_ptr<transport::StreamLayer> layer;  ///< TLS among the workers; nullptr: none
  metrics::Counter connections;                   ///< opened with other workers
  transport::Factory make_transport = transport::make_tcp;
};

/// Accept connections of other workers: sets `options.peers` and `options.join.peer_endpoint`.
/// With `options.join.exchange` auto a worker that cannot is one that others do not reach, and the
/// log says why. Waits up to `options.join_timeout` until a server's name is known.
///
/// fails   invalid_argument: an address, or one that other machines reach without a token;
///         unavailable: no server's name was known in time; as PeerReducer::open
Status open_peers(const PeerSettings& settings, ClusterOptions& options);

}  // namespace centroid::worker
