#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "transport/transport.h"

namespace centroid::test {

/// Connections to a place that say nothing, and come again when they are closed, until it is
/// destroyed.
class SilentCrowd {
 public:
  SilentCrowd(const transport::Endpoint& place, int count)
      : place_(place), transport_(transport::make_tcp(io_.executor())), tasks_(io_.executor()) {
    call_on(io_.executor(), [&] {
      for (int i = 0; i < count; ++i) tasks_.spawn(be_silent(this));
    });
  }
  ~SilentCrowd() {
    is_over_ = true;
    io_.wait(end(this));
  }
  SilentCrowd(const SilentCrowd&) = delete;
  SilentCrowd& operator=(const SilentCrowd&) = delete;

  /// Block until so many of them were told to make room.
  void wait_displaced(int count) const {
    const TimePoint deadline = centroid::now() + std::chrono::seconds(60);
    while (displaced_ < count && centroid::now() < deadline) std::this_thread::yield();
    EXPECT_GE(displaced_, count);
  }

 private:
  static Task<void> be_silent(SilentCrowd* self) {
    while (!self->is_over_) {
      const TimePoint limit = centroid::now() + std::chrono::seconds(60);
      auto connection = co_await self->transport_->connect(self->place_, limit);
      if (!connection.ok()) continue;
      const auto told = co_await (*connection)->read_header();
      if (told.ok()) ++self->displaced_;
    }
  }
  static Task<void> end(SilentCrowd* self) {
    self->tasks_.cancel();
    co_await self->tasks_.join();
    self->transport_.reset();
  }

  const transport::Endpoint place_;
  IoThread io_{"crowd"};
  std::unique_ptr<transport::Transport> transport_;
  std::atomic<int> displaced_ = 0;
  std::atomic<bool> is_over_ = false;
  TaskGroup tasks_;
};

}  // namespace centroid::test
