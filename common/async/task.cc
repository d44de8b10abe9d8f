#include "common/async/task.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <cstdlib>

#include "common/async/task_group.h"

namespace centroid {

namespace asio = boost::asio;

Task<bool> sleep_until(TimePoint when) {
  asio::steady_timer timer(co_await asio::this_coro::executor, when);
  auto [ec] = co_await timer.async_wait(kAwait);
  co_return !ec;
}

TaskGroup::TaskGroup(Executor executor)
    : executor_(std::move(executor)), idle_(executor_, asio::steady_timer::time_point::max()) {}

TaskGroup::~TaskGroup() { CENTROID_CHECK(children_.empty()); }

void TaskGroup::spawn(Task<void> task) {
  const auto child = children_.emplace(children_.end());
  auto ended = [this, child](std::exception_ptr failure) {
    if (failure && !first_) first_ = failure;
    children_.erase(child);
    if (children_.empty()) idle_.cancel();
  };
  asio::co_spawn(executor_, std::move(task), asio::bind_cancellation_slot(child->slot(), std::move(ended)));
}

void TaskGroup::cancel() {
  for (auto it = children_.begin(); it != children_.end();) {
    const auto child = it++;
    child->emit(asio::cancellation_type::terminal);
  }
}

Task<void> TaskGroup::join() {
  // The join must end even when its own coroutine was cancelled: the children's memory depends on it.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  while (!children_.empty()) {
    auto [ec] = co_await idle_.async_wait(kAwait);
    (void)ec;
  }
  if (first_) std::rethrow_exception(std::exchange(first_, nullptr));
}

Event::Event(Executor executor) : executor_(std::move(executor)) {}

void Event::notify_all() {
  auto waiters = std::exchange(waiters_, {});
  for (auto* timer : waiters) timer->cancel();
}

Task<bool> Event::wait(Deadline deadline) {
  asio::steady_timer timer(executor_, deadline);
  waiters_.push_back(&timer);
  const auto [ec] = co_await timer.async_wait(kAwait);
  if (ec && std::erase(waiters_, &timer) != 0) co_return false;  // our own task was cancelled, nobody notified
  std::erase(waiters_, &timer);
  co_return static_cast<bool>(ec);
}

}  // namespace centroid
