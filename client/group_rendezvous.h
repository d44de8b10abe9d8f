#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace centroid::client {

struct PeerOptions {
  std::uint32_t rank = 0, world = 1;
  /// Of this machine, which the other ranks reach; empty: loopback, or for `join` the one that
  /// leads to the rendezvous.
  std::string host;
  std::string token;                          ///< the same on all ranks; empty: none
  std::chrono::milliseconds timeout{60'000};  ///< of the start, and of each operation
};

/// The addresses of all ranks by rank: rank 0 collects them at `place`, and the others give theirs.
///
/// fails  as PeerGroup::join
Result<std::vector<std::string>> exchange_addresses(const PeerOptions& options,
                                                    const transport::Endpoint& place,
                                                    const std::string& address);

/// Where rank 0 listens: at `place` itself if that is loopback, else at all addresses, because
/// `place` may be a name of another network (Kubernetes, NAT).
std::string listening_host(const transport::Endpoint& place);

}  // namespace centroid::client
