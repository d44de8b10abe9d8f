#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace centroid::server {

/// Models with fewer bytes of parameters are faster through the server: one message there and one
/// back, and the sum among the workers takes one more.
inline constexpr std::uint64_t kLeastBytesAmongPeers = 256u << 10;
inline constexpr std::size_t kMostPeers = 4096;

/// What decides where the gradients of a round are added.
struct ExchangeFacts {
  struct Worker {
    std::string_view name, codec;
    bool is_reachable = false;  ///< it has told where other workers reach it
  };
  std::vector<Worker> workers;  ///< of the round
  std::uint64_t model_bytes = 0;
  std::string_view failure{};  ///< why they could not reach each other; empty: nobody said so
};

/// With exchange auto. `why`: for the log and the operator, as a part of a sentence.
struct ExchangeChoice {
  bool among_peers = false;
  std::string why;
};

/// thread  any; pure
ExchangeChoice choose_exchange(const ExchangeFacts& facts);

}  // namespace centroid::server
