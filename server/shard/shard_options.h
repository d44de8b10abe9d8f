#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace centroid::server {

struct ShardOptions {
  std::string name;  ///< unique among the servers
  /// Servers to join: the leader, or several of which one leads and the others know the leader.
  std::vector<transport::Endpoint> leaders;
  std::string advertise;           ///< HOST:PORT where workers reach this server
  std::string token;               ///< of workers
  std::string servers_token;       ///< for the leader; empty: `token`
  std::uint64_t memory_limit = 0;  ///< bytes; 0: the cgroup's or the machine's
  std::string journal_dir;         ///< used if the leader writes a journal
  std::uint64_t max_workers = 256;
  std::uint64_t max_payload_bytes = 128u << 20;
  std::chrono::milliseconds join_timeout{60'000};  ///< fail after this time without a leader
  std::chrono::milliseconds stall_timeout{30'000};
  std::uint64_t snapshot_budget = UINT64_MAX;  ///< maximum bytes; otherwise limited by free memory
  std::chrono::milliseconds drain_timeout{
      30'000};  ///< how long a stop waits for its chunks to move; 0: the leader loses the chunks
};

}  // namespace centroid::server
