#include "common/base/host.h"

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <random>

#include "common/base/random.h"
#include "common/base/thread.h"
#include "common/base/while_waiting.h"

namespace centroid {

namespace {
constexpr int kLowNice = 10;  // a weight of 110 instead of 1,024
constexpr std::chrono::milliseconds kLook{50};
}  // namespace

thread_local constinit Look while_waiting = nullptr;

thread_local constinit Host* Host::current_ = nullptr;

TimePoint now() {
  const Host* const host = Host::current();
  return host == nullptr ? std::chrono::steady_clock::now() : host->now();
}

double unix_seconds() {
  if (const Host* const host = Host::current()) return host->unix_seconds();
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::uint64_t random_seed() {
  if (Host* const host = Host::current()) return host->random();
  std::random_device entropy;
  return std::uint64_t{entropy()} << 32 | entropy();
}

unsigned core_count() {
  const Host* const host = Host::current();
  return host == nullptr ? std::thread::hardware_concurrency() : host->cores();
}

double thread_seconds() {
  if (Host::current() != nullptr) return 0;
  timespec spent{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

Thread::Thread(std::string name, std::function<void()> body, ThreadPriority priority) {
  if (Host* const host = Host::current())
    simulated_ = host->start_thread(std::move(name), std::move(body));
  else
    real_ = std::thread([name = std::move(name), body = std::move(body), priority] {
      ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
      // source setpriority(2), "C library/kernel differences": 0 is the calling thread alone.
      if (priority == ThreadPriority::kLow)
        ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kLowNice);
      body();
    });
}

Thread& Thread::operator=(Thread&& other) noexcept {
  join();
  real_ = std::move(other.real_);
  simulated_ = std::exchange(other.simulated_, 0);
  return *this;
}

bool Thread::joinable() const { return simulated_ != 0 || real_.joinable(); }

void Thread::join() {
  if (simulated_ != 0) Host::current()->join_thread(std::exchange(simulated_, 0));
  if (real_.joinable()) real_.join();
}

void Mutex::lock() {
  Host* const host = Host::current();
  if (host == nullptr) return real_.lock();
  while (std::exchange(is_locked_, true)) host->block(this, TimePoint::max());
}

void Mutex::unlock() {
  Host* const host = Host::current();
  if (host == nullptr) return real_.unlock();
  is_locked_ = false;
  host->wake(this);
}

void Condition::wait(std::unique_lock<Mutex>& lock) { wait_until(lock, TimePoint::max()); }

bool Condition::wait_until(std::unique_lock<Mutex>& lock, TimePoint deadline) {
  if (Host* const host = Host::current()) {
    lock.unlock();
    const bool is_woken = host->block(this, deadline);
    lock.lock();
    return is_woken;
  }
  const TimePoint until = while_waiting == nullptr ? deadline : std::min(deadline, now() + kLook);
  std::unique_lock inner(lock.mutex()->real_, std::adopt_lock);
  bool is_woken = true;
  if (until == TimePoint::max())  // which the system call takes for a past time
    real_.wait(inner);
  else
    is_woken = real_.wait_until(inner, until) == std::cv_status::no_timeout;
  (void)inner.release();
  if (is_woken || while_waiting == nullptr) return is_woken;
  lock.unlock();
  while_waiting();
  lock.lock();
  return now() < deadline;
}

void Condition::notify_all() {
  if (Host* const host = Host::current())
    host->wake(this);
  else
    real_.notify_all();
}

}  // namespace centroid
