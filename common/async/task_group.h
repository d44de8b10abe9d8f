#pragma once

#include <exception>
#include <list>
#include <memory>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include "common/async/task.h"
#include "common/async/timer.h"

namespace centroid {

/// Children of one owner on one executor (single thread or strand): spawn, cancel all, join. Aborts
/// if destroyed unjoined.
///
/// Cancelling ends what a child awaits with operation_aborted, as a value: no await throws, so a
/// cancelled child can still cancel and join its own group. While a group is joined, it repeats the
/// cancellation every 20 ms for children that were between two awaits. So clean-up that must
/// complete shields itself: `co_await this_coro::reset_cancellation_state(disable_cancellation())`.
class TaskGroup {
 public:
  explicit TaskGroup(Executor executor);
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  void spawn(Task<void> task);
  /// Cancel what every child awaits (terminal cancellation).
  void cancel();
  /// Wait until no child is left, also if the caller is cancelled. Rethrows the first exception (a
  /// bug: our code returns errors as values). The group can then be used again.
  Task<void> join();
  bool is_cancelled() const { return is_cancelled_; }
  std::size_t size() const { return children_.size(); }

 private:
  void wake_joiners();

  Executor executor_;
  std::list<Timer*> joiners_;
  std::list<boost::asio::cancellation_signal> children_;
  std::exception_ptr first_;
  bool is_cancelled_ = false;
};

/// Wakes every waiter; on one executor. `wait` returns false when the deadline passed first or the
/// waiter is cancelled.
///
/// cost    constant for each wait, however many waiters there are
class Event {
 public:
  explicit Event(Executor executor);
  void notify_all();
  Task<bool> wait(Deadline deadline);

 private:
  Executor executor_;
  struct Waiting;
  std::shared_ptr<std::list<Waiting*>>
      waiters_;  ///< a frame that is destroyed later removes itself
};

}  // namespace centroid
