#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/async/task.h"
#include "server/api/idempotency.h"
#include "server/api/idempotency_log.h"
#include "server/api/routes.h"

namespace centroid::server {

/// Runs calls that carry an Idempotency-Key once: who sends one again gets the first one's answer,
/// also from a server that was restarted in between, or from another one with the same folder.
///
/// thread  one executor; files are waited for on `blocking`
class IdempotentCalls {
 public:
  using Act = std::function<Task<HttpResponse>(Call)>;

  /// `path` empty: keys are kept in memory only. fails as IdempotencyLog::open
  static Result<std::unique_ptr<IdempotentCalls>> open(std::string path, Executor blocking,
                                                       std::size_t most,
                                                       std::chrono::milliseconds lifetime);
  /// The answer of `act` to this call, or that of when it was sent first. `act` outlives it.
  Task<HttpResponse> run(Call call, const Act& act);

 private:
  IdempotentCalls(Executor blocking, std::size_t most, Duration lifetime,
                  std::unique_ptr<IdempotencyLog> log);
  Task<void> keep(std::function<Status()> write);
  Task<std::optional<HttpResponse>> claim(std::string key, std::string same, std::string instance);

  const Executor blocking_;
  const std::unique_ptr<IdempotencyLog> log_;
  IdempotencyTable table_;
};

}  // namespace centroid::server
