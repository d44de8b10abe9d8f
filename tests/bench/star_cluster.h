#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/star_process.h"

namespace centroid::bench {

struct ClusterSettings {
  std::size_t workers = 4;
  std::uint64_t parameters = 25'000'000, tensors = 10;
  std::uint64_t credit_bytes = 0;  ///< 0: the server's default
  std::string apply = "server", optimizer = "sgd", codec = "f32", codec_down = "f32";
  std::string host = "127.0.0.1";       ///< where the server listens
  std::vector<std::string> namespaces;  ///< of the network: the server's, then a worker's each
  /// ring and hierarchical go among the workers: then also where each of them listens, and how many
  /// share a namespace.
  std::string exchange = "star";
  std::vector<std::string> hosts;
  std::size_t workers_per_node = 1;
  std::string run_dir;                    ///< of the server; empty: one that does not stay
  std::vector<std::string> server_flags;  ///< more of them
};

/// centroid-server as a user runs it, and workers with the star exchange whose gradients are there
/// at once: no computation.
Contender make_star_cluster(const ClusterSettings& settings);

}  // namespace centroid::bench
