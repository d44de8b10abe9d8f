#pragma once

#include <optional>
#include <type_traits>
#include <variant>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace centroid {

/// A coroutine. Rules (each has a lint or a reason in ARCHITECTURE.md, "Coroutines"):
///  1. no braces and no lambda in a statement that contains co_await: name it on the line above
///  (g++ 12 destroys it twice)
///  2. parameters by value, or references to what the caller's frame owns; a coroutine lambda
///  captures nothing
///  3. no thread_local and no thread id on both sides of an await; 4. no lock held across an await
///  5. children belong to a TaskGroup that is joined; 6. work elsewhere through `run_on`, never a
///  bare hop
template <class T>
using Task = boost::asio::awaitable<T>;

using Executor = boost::asio::any_io_executor;

/// Completion token: errors come back as values.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

/// Sleep until `when`. Returns false when cancelled, also before the call.
Task<bool> sleep_until(TimePoint when);

/// Result of a coroutine as Asio needs it: default-constructible, which Result is not.
template <class T>
using Optional = std::conditional_t<std::is_void_v<T>, std::monostate, std::optional<T>>;

template <class T>
Task<Optional<T>> to_optional(Task<T> task) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(task);
    co_return std::monostate();
  } else {
    co_return co_await std::move(task);
  }
}

template <class F>
Task<Optional<std::invoke_result_t<F>>> call(F function) {
  if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
    function();
    co_return std::monostate();
  } else {
    co_return function();
  }
}

/// Run a plain function on another executor and resume here. A running function cannot be
/// cancelled: a cancelled caller still gets its result.
template <class F>
Task<std::invoke_result_t<F>> run_on(Executor executor, F function) {
  // No slot: otherwise a cancellation before the function began would throw.
  auto token = boost::asio::bind_cancellation_slot(boost::asio::cancellation_slot(),
                                                   boost::asio::use_awaitable);
  auto result =
      co_await boost::asio::co_spawn(executor, call<F>(std::move(function)), std::move(token));
  if constexpr (!std::is_void_v<std::invoke_result_t<F>>) co_return std::move(*result);
}

/// Run a coroutine on another executor and resume here. A cancelled caller cancels it.
template <class T>
Task<T> run_on(Executor executor, Task<T> task) {
  auto result = co_await boost::asio::co_spawn(executor, to_optional(std::move(task)),
                                               boost::asio::use_awaitable);
  if constexpr (!std::is_void_v<T>) co_return std::move(*result);
}

}  // namespace centroid
