#pragma once

#include <optional>
#include <utility>

#include <boost/asio/associated_cancellation_slot.hpp>

#include "common/async/task.h"
#include "transport/parking.h"

namespace centroid::transport {

/// Place where one coroutine parks until it is woken or its task is cancelled; costs no timer.
///
/// thread  one executor; the woken coroutine runs in a later turn, never inside `wake`
/// owns    the parked coroutine: wake it before the waiter is destroyed
class Waiter {
 public:
  /// True if woken, false if the coroutine's own task was cancelled. A wake before the park is
  /// remembered.
  Task<bool> park() {
    auto start = [this](Parking::Handler handler) { begin(std::move(handler)); };
    return boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(bool)>(
        std::move(start), boost::asio::use_awaitable);
  }

  void wake() {
    if (parked_) return finish(true);
    is_woken_ = true;
  }

 private:
  void begin(Parking::Handler handler) {
    auto slot = boost::asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) slot.assign([this](boost::asio::cancellation_type) { finish(false); });
    parked_.emplace(std::move(handler));
    if (std::exchange(is_woken_, false)) finish(true);
  }

  void finish(bool woken) {
    if (!parked_) return;
    Parking::Handler handler = std::move(*parked_);
    parked_.reset();
    const auto executor = boost::asio::get_associated_executor(handler);
    // The slot is cleared in the later turn: this one may be its own emission.
    auto later = [h = std::move(handler), woken]() mutable {
      auto slot = boost::asio::get_associated_cancellation_slot(h);
      if (slot.is_connected()) slot.clear();
      h(woken);
    };
    boost::asio::post(executor, std::move(later));
  }

  std::optional<Parking::Handler> parked_;
  bool is_woken_ = false;
};

}  // namespace centroid::transport
