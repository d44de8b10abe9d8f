#pragma once

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <list>

#include "common/async/task.h"

namespace centroid {

/// Children of one owner on one executor (single thread or strand): spawn, cancel all, join. Aborts when destroyed unjoined.
class TaskGroup {
 public:
  explicit TaskGroup(Executor executor);
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  void spawn(Task<void> task);
  /// Ask every child to end (terminal cancellation of what it awaits).
  void cancel();
  /// Wait until no child is left; rethrows the first exception (a bug: our code returns errors as values).
  Task<void> join();
  std::size_t size() const { return children_.size(); }

 private:
  Executor executor_;
  boost::asio::steady_timer idle_;
  std::list<boost::asio::cancellation_signal> children_;
  std::exception_ptr first_;
};

/// Wakes every waiter; on one executor. `wait` returns false when the deadline passed first.
class Event {
 public:
  explicit Event(Executor executor);
  void notify_all();
  Task<bool> wait(Deadline deadline);

 private:
  boost::asio::steady_timer::executor_type executor_;
  std::list<boost::asio::steady_timer*> waiters_;
};

}  // namespace centroid
