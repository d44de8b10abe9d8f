#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace centroid::transport {

/// Place where one coroutine is suspended until `resume`, which posts to the coroutine's executor
/// and never runs it inline.
///
/// thread  not synchronised: the owner guards `put` and `resume` with its executor or its mutex
/// cost    no allocation of its own; one post per resume
class Parking {
 public:
  using Token = std::decay_t<decltype(boost::asio::use_awaitable)>;
  using Handler = boost::asio::async_result<Token, void(bool)>::handler_type;

  bool is_taken() const { return handler_.has_value(); }
  void put(Handler handler) { handler_.emplace(std::move(handler)); }

  /// Resume with `value` as the result of the await; no effect if none is parked.
  void resume(bool value) { resume(take(), value); }

  /// For an owner with a mutex: take the coroutine under it and resume it outside, so that the
  /// woken thread does not wait for the lock.
  std::optional<Handler> take() { return std::exchange(handler_, std::nullopt); }
  static void resume(std::optional<Handler> taken, bool value) {
    if (!taken) return;
    auto executor = boost::asio::get_associated_executor(*taken);
    boost::asio::post(executor, [h = std::move(*taken), value]() mutable { h(value); });
  }

 private:
  std::optional<Handler> handler_;
};

}  // namespace centroid::transport
