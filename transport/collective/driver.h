#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "common/async/task.h"
#include "common/base/thread.h"
#include "transport/poll_set.h"

namespace centroid::collective {

/// Runs one io_context on whichever thread has time: a caller that waits for its operation runs it
/// itself, so that its bytes are sent, received and summed without a switch between threads (a
/// wake-up on another core costs about 45 us, a small all-reduce 30). While operations without a
/// waiting caller are in progress, a thread of the driver runs it. One thread at a time: objects on
/// the executor need no locks. After kIdle without operations, the driver's thread sleeps on the
/// sockets, to answer a peer's Leave; before that no thread reads, so that the next operation has
/// no thread to take over from.
class Driver {
 public:
  /// `spin`: how long a waiting caller polls before it sleeps; useful only with more cores than
  /// ranks. 0: it polls shared memory for at most kSpinTime, as long as that pays, and yields its
  /// core between polls.
  Driver(const std::string& name, std::chrono::microseconds spin);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  Executor executor() { return context_.get_executor(); }
  boost::asio::io_context& context() { return context_; }
  transport::PollSet& polls() { return polls_; }
  /// Whether every rank of this machine has a core: otherwise a poll needs another rank to have run
  /// before.
  void set_has_cores(bool has_cores) { has_cores_ = has_cores; }

  /// An operation is in progress until `end_work`; any thread. `is_waited`: the caller calls `wait`
  /// next and runs the context itself, unless another does.
  void begin_work(bool is_waited);
  void end_work();
  /// Work in progress during its lifetime.
  class Work {
   public:
    explicit Work(Driver& driver) : driver_(driver) { driver_.begin_work(false); }
    ~Work() { driver_.end_work(); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    Driver& driver_;
  };
  /// From now on there are peers to read from while idle; any thread.
  void begin_watch();
  void end_watch();
  /// Block until `finish(is_done)`, running the context if no other thread does.
  void wait(const std::atomic<bool>& is_done) { (void)wait_until(is_done, TimePoint::max()); }
  /// The same, at most until `limit`; false: it is not done.
  bool wait_until(const std::atomic<bool>& is_done, TimePoint limit);
  /// On the driver: end the waits for `is_done`.
  void finish(std::atomic<bool>& is_done);

  /// Run a coroutine and block until it ends. Not from the driver itself.
  template <class T>
  T run(Task<T> task);

 private:
  static constexpr std::chrono::microseconds kSpinTime{50};
  static constexpr std::chrono::milliseconds kIdle{20};

  void run_in_background();
  void turn(bool may_spin, const std::atomic<bool>& is_done, TimePoint limit);
  bool look(std::chrono::nanoseconds most);

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  const std::chrono::microseconds spin_;
  transport::PollSet polls_;
  std::atomic<bool> has_cores_{false};
  std::chrono::nanoseconds spin_time_ = kSpinTime;  ///< how long it pays at present
  Mutex mutex_;
  Condition waiters_, background_;
  std::atomic<std::size_t> waiting_{0};  ///< threads asleep in `wait`
  std::atomic<std::size_t> watches_{0};
  std::atomic<std::size_t> started_{0};  ///< works, ever
  bool is_driven_ = false;
  std::atomic<bool> is_stopping_{false};
  std::atomic<std::size_t> work_{0};
  Thread thread_;
};

template <class T>
T Driver::run(Task<T> task) {
  std::optional<Optional<T>> result;
  std::exception_ptr failure;
  std::atomic<bool> is_done = false;
  begin_work(true);
  auto ended = [&](std::exception_ptr why, Optional<T> value) {
    failure = why;
    result = std::move(value);
    end_work();
    finish(is_done);
  };
  boost::asio::co_spawn(context_, to_optional(std::move(task)), std::move(ended));
  wait(is_done);
  if (failure) std::rethrow_exception(failure);
  if constexpr (!std::is_void_v<T>) return std::move(**result);
}

}  // namespace centroid::collective
