#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "common/async/task.h"
#include "common/base/thread.h"

namespace centroid {

/// Result of a coroutine that runs on an executor, for a thread that blocks.
template <class T>
class Pending {
 public:
  using Value = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

  Pending() = default;
  /// Start `task` on `executor`.
  Pending(Executor executor, Task<T> task) : state_(std::make_shared<State>()) {
    auto done = [state = state_](std::exception_ptr failure, Optional<T> value) {
      const std::lock_guard lock(state->mutex);
      state->failure = failure;
      if constexpr (std::is_void_v<T>)
        state->value.emplace();
      else
        state->value = std::move(value);
      state->is_done = true;
      state->changed.notify_all();
    };
    boost::asio::co_spawn(executor, to_optional(std::move(task)), std::move(done));
  }

  bool valid() const { return state_ != nullptr; }
  bool is_done() const {
    const std::lock_guard lock(state_->mutex);
    return state_->is_done;
  }
  /// Block until the coroutine has ended; rethrows its exception. Call once.
  T get() {
    const auto state = std::exchange(state_, nullptr);
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->is_done; });
    if (state->failure) std::rethrow_exception(state->failure);
    if constexpr (!std::is_void_v<T>) return std::move(*state->value);
  }

 private:
  struct State {
    Mutex mutex;
    Condition changed;
    bool is_done = false;
    std::exception_ptr failure;
    std::optional<Value> value;
  };
  std::shared_ptr<State> state_;
};

/// Run a coroutine on `executor` and block this (other) thread until it ends.
template <class T>
T wait_on(Executor executor, Task<T> task) {
  return Pending<T>(std::move(executor), std::move(task)).get();
}

/// Run a plain function on `executor` and block this (other) thread until it has returned.
template <class F>
std::invoke_result_t<F> call_on(Executor executor, F function) {
  using T = std::invoke_result_t<F>;
  if constexpr (std::is_void_v<T>)
    wait_on(std::move(executor), call<F>(std::move(function)));
  else
    return std::move(*wait_on(std::move(executor), call<F>(std::move(function))));
}

/// Run one handler of a context that this thread runs, or return at `deadline`.
inline void run_one_until(boost::asio::io_context& context, TimePoint deadline) {
  Host* const host = Host::current();
  if (host == nullptr) {
    if (context.run_one_until(deadline) == 0 && context.stopped()) context.restart();
    return;
  }
  for (;;) {
    if (context.stopped()) context.restart();
    const bool found = context.poll_one() != 0;
    host->yield(found);
    if (found || now() >= deadline) return;
  }
}

}  // namespace centroid
