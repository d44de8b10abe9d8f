#include "transport/collective/driver.h"

#include <pthread.h>

#include <boost/asio/post.hpp>

#include "common/base/clock.h"

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
  work_.fetch_add(1);
  if (is_waited) return;
  // Under the mutex: the background thread may stand between its check and its sleep.
  const std::lock_guard lock(mutex_);
  if (!is_driven_) background_.notify_one();
}

void Driver::end_work() { work_.fetch_sub(1); }

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
    drive(is_done);
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) {
      waiters_.notify_all();
    } else if (work_ != 0) {
      background_.notify_one();
    }
  }
}

void Driver::drive(const std::atomic<bool>& is_done) {
  if (spin_.count() != 0) {
    TimePoint until = std::chrono::steady_clock::now() + spin_;
    while (!is_done) {
      const bool moved = context_.poll_one() != 0;
      const TimePoint now = std::chrono::steady_clock::now();
      if (moved) {
        until = now + spin_;
      } else if (now > until) {
        context_.run_one();
      }
    }
    return;
  }
  while (!is_done) context_.run_one();
}

void Driver::run_in_background() {
  std::unique_lock lock(mutex_);
  while (true) {
    background_.wait(lock, [this] { return is_stopping_ || (!is_driven_ && work_ != 0); });
    if (is_stopping_) return;
    is_driven_ = true;
    lock.unlock();
    while (work_ != 0 && !is_stopping_) context_.run_one();
    lock.lock();
    is_driven_ = false;
    if (waiting_ != 0) waiters_.notify_all();
  }
}

}  // namespace centroid::collective
