#include "transport/collective/driver.h"

#include <sched.h>

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/relax.h"

namespace centroid::collective {

Driver::Driver(const std::string& name, std::chrono::microseconds spin)
    : guard_(context_.get_executor()), spin_(spin) {
  thread_ = Thread(name, [this] { run_in_background(); });
}

Driver::~Driver() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  background_.notify_all();
  guard_.reset();
  context_.stop();
  thread_.join();
}

void Driver::begin_work(bool is_waited) {
  started_.fetch_add(1);
  work_.fetch_add(1);
  if (is_waited) return;
  // Under the mutex: the background thread may be between its check and its sleep.
  const std::lock_guard lock(mutex_);
  if (!is_driven_) background_.notify_all();
}

void Driver::end_work() { work_.fetch_sub(1); }

void Driver::begin_watch() {
  const std::lock_guard lock(mutex_);
  ++watches_;
  background_.notify_all();
}

void Driver::end_watch() { --watches_; }

void Driver::finish(std::atomic<bool>& is_done) {
  const std::lock_guard lock(mutex_);
  is_done = true;  // the waiter may destroy what it waited for as soon as the mutex is free
  if (waiting_ != 0) waiters_.notify_all();
}

bool Driver::wait_until(const std::atomic<bool>& is_done, TimePoint limit) {
  const bool is_limited = limit != TimePoint::max();
  std::unique_lock lock(mutex_);
  while (!is_done && !(is_limited && centroid::now() >= limit)) {
    if (is_driven_) {
      ++waiting_;
      if (is_limited)
        waiters_.wait_until(lock, limit);
      else
        waiters_.wait(lock);
      --waiting_;
      continue;
    }
    is_driven_ = true;
    lock.unlock();
    do {
      turn(true, is_done, limit);
    } while (!is_done && !(is_limited && centroid::now() >= limit));
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) {
      waiters_.notify_all();
    } else if (work_ != 0) {
      background_.notify_all();
    }
  }
  return is_done;
}

/// Run ready handlers; otherwise wait for one, polling or asleep.
void Driver::turn(bool may_spin, const std::atomic<bool>& is_done, TimePoint limit) {
  if (Host* const host = Host::current(); host != nullptr) {
    host->yield(context_.poll_one() != 0);
    return;
  }
  const bool spins = spin_.count() != 0 && may_spin;
  if (!may_spin && polls_.empty()) {
    context_.run_one();
    return;
  }
  bool has_run = false;
  while (!is_done && context_.poll_one() != 0) has_run = true;
  if (has_run) return;
  const TimePoint begin = centroid::now();
  if (may_spin && look(spins ? spin_ : spin_time_)) {
    spin_time_ = std::min<std::chrono::nanoseconds>(kSpinTime, 2 * spin_time_);
    return;
  }
  if (polls_.arm()) {
    if (limit == TimePoint::max())
      context_.run_one();
    else
      context_.run_one_until(limit);
  }
  polls_.disarm();
  if (!may_spin) return;
  // If a wait was hardly longer, polling would have paid; a long one means that a rank computes.
  const bool would_pay = centroid::now() - begin < 3 * kSpinTime;
  spin_time_ =
      would_pay ? kSpinTime : std::max<std::chrono::nanoseconds>(kSpinTime / 16, spin_time_ / 2);
}

bool Driver::look(std::chrono::nanoseconds most) {
  // If ranks share cores, the next poll is useful only after another rank has run.
  const unsigned looks = has_cores_ ? 32 : 1;
  const TimePoint until = centroid::now() + most;
  for (unsigned n = 1;; ++n) {
    for (unsigned i = 0; i < looks && !polls_.empty(); ++i) {
      if (polls_.poll()) return true;
      relax();
    }
    ::sched_yield();  // other runnable threads first
    if ((polls_.empty() || n % 4 == 0) && context_.poll_one() != 0) return true;
    if (centroid::now() >= until) return false;
  }
}

void Driver::run_in_background() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const std::size_t begun = started_;
    // A waiter drives itself.
    const auto has_work = [this] {
      return is_stopping_ || (!is_driven_ && waiting_ == 0 && work_ != 0);
    };
    if (watches_ == 0) {
      background_.wait(lock, [&] { return has_work() || watches_ != 0; });
    } else {
      background_.wait_for(lock, kIdle, has_work);
    }
    const bool is_idle = work_ == 0;
    if (is_stopping_ || is_driven_ || waiting_ != 0 ||
        (is_idle && (watches_ == 0 || begun != started_)))
      continue;
    is_driven_ = true;
    lock.unlock();
    while ((work_ == 0) == is_idle && waiting_ == 0 && !is_stopping_)
      turn(false, is_stopping_, TimePoint::max());
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) waiters_.notify_all();
  }
}

}  // namespace centroid::collective
