#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace centroid {

/// A coroutine. Rules (each has a lint or a reason in ARCHITECTURE.md, "Coroutines"):
///  1. no braces and no lambda in a statement that contains co_await: name it on the line above (g++ 12 destroys it twice)
///  2. parameters by value, or references to what the caller's frame keeps; a coroutine lambda captures nothing
///  3. no thread_local and no thread id on both sides of an await; 4. no lock held across an await
///  5. children belong to a TaskGroup that is joined; 6. work elsewhere through `run_on`, never a bare hop
template <class T>
using Task = boost::asio::awaitable<T>;

using Executor = boost::asio::any_io_executor;

/// Completion token: errors come back as values.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

/// Sleep until `when`. Returns false when cancelled.
Task<bool> sleep_until(TimePoint when);

/// Run a plain function on another executor and resume here.
template <class F>
Task<std::invoke_result_t<F>> run_on(Executor executor, F function) {
  using R = std::invoke_result_t<F>;
  auto body = [](F fn) -> Task<R> { co_return fn(); };
  co_return co_await boost::asio::co_spawn(executor, body(std::move(function)), boost::asio::use_awaitable);
}

}  // namespace centroid
