#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/ledger.h"

namespace centroid::simulation {

/// What a seed decides of a job.
struct Plan {
  std::uint64_t seed = 1;
  std::size_t workers = 3;
  std::size_t shards = 0;   ///< shard servers beside the primary
  std::size_t servers = 1;  ///< 2: the second stands by, and etcd chooses
  std::uint64_t rounds = 200;
  std::size_t faults = 6;
  std::uint64_t min_workers = 1;
  std::uint64_t checkpoint_every = 0;
  std::string policy = "bsp", late = "drop", apply = "server", codec = "f32", codec_down = "f32",
              optimizer = "sgd";
  std::string exchange = "star";  ///< ring, hierarchical, auto: the workers have the newest state
  std::uint64_t local_steps = 1;  ///< 2 or more: the workers step, and their changes are averaged
  std::uint64_t fragments = 1;    ///< 2: the workers contribute one tensor and then the other
  std::uint64_t overlap = 0;      ///< steps while a contribution travels
  std::size_t rows_clients = 0;   ///< of a table of sparse rows
  std::size_t disk_errors = 0;    ///< times at which a disk fails some operations
  bool restores = false;          ///< an operator goes back to checkpoints
  bool drains_servers = false;    ///< an operator moves the chunks of shard servers away

  static Plan draw(std::uint64_t seed);
  bool has_peers() const { return exchange != "star"; }
  /// Without one a worker accepts no others from elsewhere.
  std::string token() const { return has_peers() ? "a token" : ""; }
  Ledger::Rule rule() const;  ///< what the ledger can check
  std::string to_string() const;

 private:
  void meet_peers(std::uint64_t choice);
};

/// Of every job.
inline constexpr std::size_t kParameters = 320;
inline constexpr double kRate = 1.0 / 16;
inline constexpr std::uint64_t kSamples = 400, kBatch = 8;
inline constexpr const char* kTable = "t:dim=4,optimizer=sgd,lr=0.0625";

}  // namespace centroid::simulation
