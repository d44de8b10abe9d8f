#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.h"

namespace centroid::bench {

/// Many workers of one cluster on one thread of this process. They speak the protocol of the star
/// exchange over TCP, each with a connection of its own, and compute nothing: each contribution is
/// the same numbers.
///
/// thread  every call from one thread, which blocks; the sessions live on a thread of the object's
/// fails   ends the program, naming the worker: a session that ends, a round that is not committed
class LightTrainers {
 public:
  /// Connect and join `count` workers with a model of one tensor of `parameters` floats, which must
  /// fit into one chunk. Returns when the first round is open for all of them; none contributes.
  LightTrainers(const transport::Endpoint& server, std::uint64_t count, std::uint64_t parameters);
  ~LightTrainers();
  LightTrainers(const LightTrainers&) = delete;
  LightTrainers& operator=(const LightTrainers&) = delete;

  /// Contribute to so many rounds, all workers to each. Returns when they are committed and the
  /// next one is open for all workers; none contributes to that one.
  void run(std::uint64_t rounds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Let this process, and those that it starts, have `files` open files and more.
/// fails  ends the program: the system's limit is lower
void raise_file_limit(std::uint64_t files);

}  // namespace centroid::bench
