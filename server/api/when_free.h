#pragma once

#include <chrono>
#include <functional>

#include "common/async/task.h"
#include "common/base/result.h"

namespace centroid::server {

/// Run on `blocking` an operation that fails with `aborted` while another server has its lock, and
/// retry. Waits between the attempts without blocking others; 2 s at most.
/// fails   unavailable: another server had the lock all the time; cancelled; the error of `act`
template <class T>
Task<Result<T>> when_free(Executor blocking, std::function<Result<T>()> act) {
  constexpr std::chrono::seconds kPatience{2};
  constexpr std::chrono::milliseconds kPause{10};
  const auto now = [] { return centroid::now(); };
  const TimePoint limit = now() + kPatience;
  for (;;) {
    Result<T> outcome = co_await run_on(blocking, act);
    if (outcome.ok() || outcome.error().code() != ErrorCode::kAborted) co_return outcome;
    if (now() >= limit)
      co_return Error(ErrorCode::kUnavailable, outcome.error().message() + " for 2 s: repeat");
    const bool goes_on = co_await sleep_until(now() + kPause);  // lint-ok: another process's lock
    if (!goes_on) co_return Error(ErrorCode::kCancelled, "the call was cancelled");
  }
}

}  // namespace centroid::server
