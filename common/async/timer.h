#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "common/async/task.h"
#include "common/base/host.h"

namespace centroid {

/// One-shot timer by the time of the thread that makes it: Asio's, or a simulation's.
///
/// thread  its executor's
/// ends    a wait completes with success at its time, and with operation_aborted when the timer is
///         cancelled, moved or destroyed; never inside the call that causes it
class Timer {
 public:
  explicit Timer(Executor executor, TimePoint when = TimePoint::max());
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  TimePoint expiry() const { return real_ ? real_->expiry() : when_; }
  void expires_at(TimePoint when);  ///< cancels all waits
  void cancel();

  template <class Token>
  auto async_wait(Token&& token) {
    return boost::asio::async_initiate<Token, void(boost::system::error_code)>(
        [this](auto handler) { start(std::move(handler)); }, token);
  }

 private:
  using ErrorCode = boost::system::error_code;
  /// A wait in a simulation.
  struct Wait {
    virtual ~Wait() = default;
    virtual void end(ErrorCode error) = 0;
  };
  template <class Handler>
  struct WaitOf;
  using Waits = std::vector<std::shared_ptr<Wait>>;

  template <class Handler>
  void start(Handler handler) {
    if (real_) return real_->async_wait(std::move(handler));
    auto wait = std::make_shared<WaitOf<Handler>>(executor_, std::move(handler));
    auto slot = boost::asio::get_associated_cancellation_slot(wait->handler);
    if (slot.is_connected()) {
      std::weak_ptr<Wait> weak = wait;
      slot.assign(
          [waits = waits_, weak](boost::asio::cancellation_type) { end_one(*waits, weak); });
    }
    add(std::move(wait));
  }
  void add(std::shared_ptr<Wait> wait);
  static void end_one(Waits& waits, const std::weak_ptr<Wait>& one);
  static void end_all(Waits& waits, ErrorCode error);

  std::optional<boost::asio::steady_timer> real_;
  Host* host_ = nullptr;
  Executor executor_;
  TimePoint when_;
  Host::Number scheduled_ = 0;
  std::shared_ptr<Waits> waits_;
};

template <class Handler>
struct Timer::WaitOf final : Timer::Wait {
  WaitOf(const Executor& timers, Handler h)
      : handler(std::move(h)), executor(boost::asio::get_associated_executor(handler, timers)) {}
  void end(ErrorCode error) override {
    auto later = [h = std::move(handler), error]() mutable {
      auto slot = boost::asio::get_associated_cancellation_slot(h);
      if (slot.is_connected()) slot.clear();
      std::move(h)(error);
    };
    boost::asio::post(executor, std::move(later));
  }
  Handler handler;
  boost::asio::associated_executor_t<Handler, Executor> executor;
};

}  // namespace centroid
