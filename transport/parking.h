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

  /// Resume with `value` as the result of the await; nothing when nobody is parked.
  void resume(bool value) {
    if (!handler_) return;
    Handler handler = std::move(*handler_);
    handler_.reset();
    resume(std::move(handler), value);
  }
  static void resume(Handler handler, bool value) {
    auto executor = boost::asio::get_associated_executor(handler);
    boost::asio::post(executor, [h = std::move(handler), value]() mutable { h(value); });
  }

 private:
  std::optional<Handler> handler_;
};

}  // namespace centroid::transport
