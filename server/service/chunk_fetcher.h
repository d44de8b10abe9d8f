#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/async/until.h"
#include "common/base/result.h"
#include "common/proto/servers.h"

namespace centroid::server {

/// Chunks that lie on other servers, in a given order; the next ones are asked for before it is
/// their turn, so that a server's answer is not waited for once a chunk.
///
/// thread  one executor
/// memory  at most kAhead chunks and kAheadBytes, or one chunk that is larger
class ChunkFetcher {
 public:
  struct Wanted {
    proto::ServerChunk head;
    std::uint64_t bytes = 0;
  };
  using Values = Result<std::vector<std::byte>>;
  using Fetch = std::function<Task<Values>(proto::ServerChunk)>;
  static constexpr std::size_t kAhead = 64;
  static constexpr std::uint64_t kAheadBytes = 8u << 20;

  /// `tasks`: where requests run, which may outlive this; what `fetch` holds must not go before.
  ChunkFetcher(Executor executor, TaskGroup& tasks, Fetch fetch, std::vector<Wanted> wanted);
  /// Whether `next` is of this chunk.
  bool is_next(std::size_t plane, ChunkId chunk) const;
  /// Nothing may follow an error.
  /// fails  as `fetch`, cancelled
  Task<Values> next();

 private:
  struct Slot {
    proto::ServerChunk head;
    std::uint64_t bytes = 0;
    std::optional<Values> values;
  };
  struct Shared {
    Shared(Executor executor, Fetch how) : fetch(std::move(how)), arrived(executor) {}
    const Fetch fetch;
    Event arrived;
  };
  static Task<void> bring(std::shared_ptr<Shared> shared, std::shared_ptr<Slot> slot);

  TaskGroup& tasks_;
  const std::shared_ptr<Shared> shared_;
  const std::vector<Wanted> wanted_;
  std::size_t asked_ = 0;
  std::uint64_t bytes_ahead_ = 0;
  std::deque<std::shared_ptr<Slot>> ahead_;
};

}  // namespace centroid::server
