#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/async/io_thread.h"
#include "common/async/task.h"

namespace centroid {

/// A few threads for work that would block an executor's thread for long.
///
/// thread  that of `home`
class WorkThreads {
 public:
  /// At least one thread; each begins with its first work.
  WorkThreads(Executor home, std::string name, std::size_t count);
  /// Blocks until work under way has ended. Other work, and what follows, is dropped.
  ~WorkThreads();
  WorkThreads(const WorkThreads&) = delete;
  WorkThreads& operator=(const WorkThreads&) = delete;

  /// Run `work` on the thread that has least to do, then `then` at home. Neither may throw.
  void run(std::function<void()> work, std::function<void()> then);

 private:
  struct Lane {
    std::unique_ptr<IoThread> thread;
    std::size_t pending = 0;
  };
  const Executor home_;
  const std::string name_;
  std::shared_ptr<std::vector<Lane>> lanes_;
};

}  // namespace centroid
