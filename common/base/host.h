#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/clock.h"

namespace centroid {

/// The machine under a program if it is not the operating system: a simulation supplies time,
/// timers, threads and random numbers. Product code does not call this interface: it uses `now`,
/// `Timer`, `Thread`, `Condition`, `IoThread` and `random_seed`, which use the host of the calling
/// thread or else the operating system.
///
/// thread  all threads of a simulation are fibers of one operating-system thread
class Host {
 public:
  using Number = std::uint64_t;  ///< of a timer or thread, from 1

  virtual ~Host() = default;
  virtual TimePoint now() const = 0;
  virtual double unix_seconds() const = 0;
  virtual std::uint64_t random() = 0;
  virtual unsigned cores() const = 0;

  /// Call `act` at `when`; it does not block and runs on no thread.
  virtual Number schedule(TimePoint when, std::function<void()> act) = 0;
  virtual void unschedule(Number timer) = 0;

  virtual Number start_thread(std::string name, std::function<void()> body) = 0;
  virtual void join_thread(Number thread) = 0;
  /// Block the calling thread until `wake(on)` or the deadline; false: the deadline passed.
  virtual bool block(const void* on, TimePoint deadline) = 0;
  virtual void wake(const void* on) = 0;
  /// The calling thread polls for work; `found_work`: it had some. Returns after other threads have
  /// run. If no thread finds any, time advances.
  virtual void yield(bool found_work) = 0;

  /// Of the calling thread; nullptr: the operating system.
  static Host* current() { return current_; }

 protected:
  static void set_current(Host* host) { current_ = host; }

 private:
  static thread_local constinit Host* current_;
};

}  // namespace centroid
