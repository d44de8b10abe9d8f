#include "worker/exchange/open_peers.h"

#include <utility>

#include "common/base/log.h"
#include "worker/exchange/peer_reducer.h"

namespace centroid::worker {

namespace {

Status listen_to_peers(const PeerSettings& settings, ClusterOptions& options) {
  transport::Endpoint listen;
  if (settings.listen.empty()) {
    CENTROID_ASSIGN(listen.host, transport::local_address_towards(options.servers.front()));
  } else {
    CENTROID_ASSIGN(listen, transport::Endpoint::parse(settings.listen));
  }
  if (!listen.is_loopback() && options.token.empty())
    return Error(
        ErrorCode::kInvalidArgument,
        listen.to_string() + " is reachable from other machines: set a token (--token-file FILE)");
  transport::TransportOptions wire;
  wire.congestion_control = settings.congestion_control;
  wire.layer = settings.layer;
  collective::MeshOptions mesh;
  mesh.token = options.token;
  mesh.manifest_hash = manifest_hash(options.join.manifest);
  mesh.thread_name = "peers";
  mesh.shared_memory = settings.shared_memory;
  mesh.connections = settings.connections;
  CENTROID_ASSIGN(std::shared_ptr<PeerReducer> peers,
                  PeerReducer::open(collective::tcp_factory(wire), listen, mesh));
  transport::Endpoint advertised = peers->endpoint();
  if (advertised.host == "0.0.0.0" ||
      advertised.host == "::") {  // other workers cannot connect to that address
    CENTROID_ASSIGN(advertised.host, transport::local_address_towards(options.servers.front()));
  }
  std::string endpoint = settings.advertise.empty() ? advertised.to_string() : settings.advertise;
  CENTROID_TRY(transport::Endpoint::parse(endpoint));
  options.join.peer_endpoint = std::move(endpoint);
  options.peers = std::move(peers);
  return {};
}

}  // namespace

Status open_peers(const PeerSettings& settings, ClusterOptions& options) {
  const Status opened = listen_to_peers(settings, options);
  if (opened.ok()) return {};
  const bool is_asked_for =
      options.join.exchange != "auto" || !settings.listen.empty() || !settings.advertise.empty();
  if (is_asked_for) return opened.error().with_context("--peer.listen");
  log::info("peers.none", {{"why", opened.error()}});
  return {};
}

}  // namespace centroid::worker
