#include "transport/collective/driver.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/clock.h"
#include "common/base/relax.h"

namespace centroid::collective {

Driver::Driver(const std::string& name, std::chrono::microseconds spin)
    : guard_(context_.get_executor()), spin_(spin) {
  thread_ = std::thread([this] { run_in_background(); });
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
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
  begun_.fetch_add(1);
  work_.fetch_add(1);
  if (is_waited) return;
  // Under the mutex: the background thread may stand between its check and its sleep.
  const std::lock_guard lock(mutex_);
  if (!is_driven_) background_.notify_one();
}

void Driver::end_work() { work_.fetch_sub(1); }

void Driver::begin_watch() {
  const std::lock_guard lock(mutex_);
  ++watches_;
  background_.notify_one();
}

void Driver::end_watch() { --watches_; }

void Driver::finish(std::atomic<bool>& is_done) {
  const std::lock_guard lock(mutex_);
  is_done = true;  // the waiter may destroy what it waited for as soon as the mutex is free
  if (waiting_ != 0) waiters_.notify_all();
}

void Driver::wait(const std::atomic<bool>& is_done) {
  std::unique_lock lock(mutex_);
  while (!is_done) {
    if (is_driven_) {
      ++waiting_;
      waiters_.wait(lock);
      --waiting_;
      continue;
    }
    is_driven_ = true;
    lock.unlock();
    while (!is_done) turn(true, is_done);
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) {
      waiters_.notify_all();
    } else if (work_ != 0) {
      background_.notify_one();
    }
  }
}

/// Run what is ready; else wait for something, by looking or asleep.
void Driver::turn(bool may_look, const std::atomic<bool>& is_done) {
  const bool spins = spin_.count() != 0 && may_look;
  if (!may_look && polls_.empty()) {
    context_.run_one();
    return;
  }
  bool has_run = false;
  while (!is_done && context_.poll_one() != 0) has_run = true;
  if (has_run) return;
  const TimePoint begin = centroid::now();
  if (may_look && look(spins ? spin_ : look_)) {
    look_ = std::min<std::chrono::nanoseconds>(kLook, 2 * look_);
    return;
  }
  if (polls_.arm()) context_.run_one();
  polls_.disarm();
  if (!may_look) return;
  // A wait that was hardly longer would have paid; a long one is somebody who computes.
  const bool would_pay = centroid::now() - begin < 3 * kLook;
  look_ = would_pay ? kLook : std::max<std::chrono::nanoseconds>(kLook / 16, look_ / 2);
}

bool Driver::look(std::chrono::nanoseconds most) {
  // Where ranks share cores, the next look is worth something only when another one has run.
  const unsigned looks = has_cores_ ? 32 : 1;
  const TimePoint until = centroid::now() + most;
  for (unsigned n = 1;; ++n) {
    for (unsigned i = 0; i < looks && !polls_.empty(); ++i) {
      if (polls_.poll()) return true;
      relax();
    }
    ::sched_yield();  // whoever can run goes first
    if ((polls_.empty() || n % 4 == 0) && context_.poll_one() != 0) return true;
    if (centroid::now() >= until) return false;
  }
}

void Driver::run_in_background() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const std::size_t begun = begun_;
    // Whoever waits drives itself.
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
        (is_idle && (watches_ == 0 || begun != begun_)))
      continue;
    is_driven_ = true;
    lock.unlock();
    while ((work_ == 0) == is_idle && waiting_ == 0 && !is_stopping_) turn(false, is_stopping_);
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) waiters_.notify_all();
  }
}

}  // namespace centroid::collective
