#include "common/async/task.h"

#include <cstdlib>

#include <boost/asio/this_coro.hpp>

#include "common/async/task_group.h"
#include "common/async/timer.h"

namespace centroid {

namespace asio = boost::asio;

namespace {

constexpr auto kRetryInterval = std::chrono::milliseconds(20);

// A cancelled child gets errors as values, not an exception at its next await: it must be able to
// join its own children.
Task<void> without_throwing(Task<void> task) {
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await std::move(task);
}

bool is_abort(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const boost::system::system_error& error) {
    return error.code() == asio::error::operation_aborted;
  } catch (...) {
    return false;
  }
}

}  // namespace

Task<bool> sleep_until(TimePoint when) {
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) co_return false;
  Timer timer(co_await asio::this_coro::executor, when);
  auto [ec] = co_await timer.async_wait(kAwait);
  co_return !ec;
}

TaskGroup::TaskGroup(Executor executor) : executor_(std::move(executor)) {}

TaskGroup::~TaskGroup() { CENTROID_CHECK(children_.empty()); }

void TaskGroup::spawn(Task<void> task) {
  const auto child = children_.emplace(children_.end());
  auto ended = [this, child](std::exception_ptr failure) {
    // A child that is cancelled before its first line ends with operation_aborted, as requested.
    if (failure && !first_ && !(is_cancelled_ && is_abort(failure))) first_ = failure;
    children_.erase(child);
    if (children_.empty()) wake_joiners();
  };
  asio::co_spawn(executor_, without_throwing(std::move(task)),
                 asio::bind_cancellation_slot(child->slot(), std::move(ended)));
}

void TaskGroup::cancel() {
  const bool was_cancelled = std::exchange(is_cancelled_, true);
  for (auto it = children_.begin(); it != children_.end();) {
    const auto child = it++;
    child->emit(asio::cancellation_type::terminal);
  }
  if (!was_cancelled) wake_joiners();  // a running join sends cancellations again
}

void TaskGroup::wake_joiners() {
  for (auto* timer : joiners_) timer->cancel();
}

Task<void> TaskGroup::join() {
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!children_.empty()) {
    Timer timer(executor_, is_cancelled_ ? now() + kRetryInterval : TimePoint::max());
    const auto joiner = joiners_.insert(joiners_.end(), &timer);
    // The wait has no slot: it ends when the children have, whatever happens to the caller.
    auto token = asio::bind_cancellation_slot(asio::cancellation_slot(), kAwait);
    auto [ec] = co_await timer.async_wait(std::move(token));
    joiners_.erase(joiner);
    if (!ec && is_cancelled_) cancel();
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
  is_cancelled_ = false;
  if (first_) std::rethrow_exception(std::exchange(first_, nullptr));
}

/// A call of `wait`, on its coroutine's frame.
struct Event::Waiting {
  Waiting(Event& event, Deadline deadline)
      : all(event.waiters_),
        timer(event.executor_, deadline),
        place(all->insert(all->end(), this)) {}
  ~Waiting() {
    if (!is_notified) all->erase(place);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  const std::shared_ptr<std::list<Waiting*>> all;
  Timer timer;
  bool is_notified = false;  ///< and removed from the list
  const std::list<Waiting*>::iterator place;
};

Event::Event(Executor executor)
    : executor_(std::move(executor)), waiters_(std::make_shared<std::list<Waiting*>>()) {}

void Event::notify_all() {
  for (Waiting* const one : *waiters_) {
    one->is_notified = true;
    one->timer.cancel();
  }
  waiters_->clear();
}

Task<bool> Event::wait(Deadline deadline) {
  const auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) co_return false;
  Waiting waiting(*this, deadline);
  (void)co_await waiting.timer.async_wait(kAwait);
  co_return waiting.is_notified;
}

}  // namespace centroid
