#include "worker/exchange/open_peers.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "worker/exchange/peer_reducer.h"

namespace centroid::worker {

namespace {

using namespace std::chrono_literals;

/// This machine's address on the way to a server. The name of a server that is yet to start may be
/// unknown so far.
Result<std::string> address_towards_a_server(const ClusterOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  for (bool is_told = false;; std::this_thread::sleep_for(200ms)) {
    std::optional<Error> why;
    for (const transport::Endpoint& server : options.servers) {
      Result<std::string> found = transport::local_address_towards(server);
      if (found.ok()) return found;
      why = found.error();
    }
    if (std::chrono::steady_clock::now() >= deadline) return *std::move(why);
    if (!is_told) log::warn("peers.waiting", {{"why", *why}});
    is_told = true;
  }
}

bool is_any(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

/// Whether others connect to this machine's address on the way to a server.
bool needs_own_address(const PeerSettings& settings) {
  if (settings.listen.empty()) return true;
  const auto listen = transport::Endpoint::parse(settings.listen);
  return listen.ok() && is_any(listen->host) && settings.advertise.empty();
}

Status listen_to_peers(const PeerSettings& settings, const std::string& own_address,
                       ClusterOptions& options) {
  transport::Endpoint listen;
  listen.host = own_address;
  if (!settings.listen.empty()) {
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
  CENTROID_ASSIGN(
      std::shared_ptr<PeerReducer> peers,
      PeerReducer::open(collective::tcp_factory(wire, settings.make_transport), listen, mesh));
  transport::Endpoint advertised = peers->endpoint();
  if (is_any(advertised.host))
    advertised.host = own_address;  // other workers cannot connect to the other
  std::string endpoint = settings.advertise.empty() ? advertised.to_string() : settings.advertise;
  CENTROID_TRY(transport::Endpoint::parse(endpoint));
  options.join.peer_endpoint = std::move(endpoint);
  options.peers = std::move(peers);
  return {};
}

}  // namespace

Status open_peers(const PeerSettings& settings, ClusterOptions& options) {
  std::string own_address;
  if (needs_own_address(settings)) {
    CENTROID_ASSIGN(own_address, address_towards_a_server(options));
  }
  const Status opened = listen_to_peers(settings, own_address, options);
  if (opened.ok()) return {};
  const bool is_asked_for =
      options.join.exchange != "auto" || !settings.listen.empty() || !settings.advertise.empty();
  if (is_asked_for) return opened.error().with_context("--peer.listen");
  log::info("peers.none", {{"why", opened.error()}});
  return {};
}

}  // namespace centroid::worker
