#pragma once

#include <cstdint>

#include "tests/bench/star_process.h"

namespace centroid::bench {

/// Where the members' bytes come from and go to.
enum class RawBuffers : std::uint8_t {
  kMemory,  ///< as much memory as a worker's gradients and parameters
  kCache,   ///< one small buffer per direction, over and over
};

/// The bytes of a star round and nothing else: `connections` plain blocking sockets between two
/// processes, a thread per direction of each; `bytes` go both ways at once over all of them
/// together, `worker_bytes` of them to and from one worker. No checksums, no additions, no order
/// between the directions; the server's buffers stay in cache.
Contender make_raw_star(std::size_t connections, std::uint64_t bytes, std::uint64_t worker_bytes,
                        RawBuffers buffers);

}  // namespace centroid::bench
