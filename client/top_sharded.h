#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "client/online.h"

namespace centroid::client {

/// What every rank of a job of exchange sharded has and does, from GET /v1/sharded of one worker
/// (--metrics.listen).
class ShardedTop {
 public:
  explicit ShardedTop(const Session& session) : session_(session) {}

  /// Both tables; rates and times of a step are those since the last call, at first those since the
  /// job's begin. With JSON what the worker answers.
  Result<std::string> look();

 private:
  std::string text(const Json& job);
  std::string doing(const Json& ranks);

  const Session& session_;
  std::map<std::uint64_t, std::pair<Json, Json>> seen_;  ///< of a worker: the last two that differ
};

}  // namespace centroid::client
