#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "common/async/task.h"
#include "server/api/idempotency.h"
#include "server/api/routes.h"

namespace centroid::server {

/// Executes each call with an Idempotency-Key once: a repeated call gets the first one's answer as
/// long as this server runs.
///
/// thread  one executor
class IdempotentCalls {
 public:
  using Act = std::function<Task<HttpResponse>(Call)>;

  IdempotentCalls(std::size_t most, Duration lifetime) : table_(most, lifetime) {}
  /// The answer of `act` to this call, or its answer to the first call with this key. `act`
  /// outlives it.
  Task<HttpResponse> run(Call call, const Act& act);

 private:
  IdempotencyTable table_;
};

}  // namespace centroid::server
