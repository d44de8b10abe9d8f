#pragma once

#include <string>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "common/async/task.h"
#include "common/async/wait_on.h"
#include "common/base/thread.h"

namespace centroid {

/// One named thread that runs one io_context(1). Objects that live on its executor need no locks.
class IoThread {
 public:
  explicit IoThread(const std::string& name, ThreadPriority priority = ThreadPriority::kNormal);
  ~IoThread();  ///< stops and joins; no other thread may be in a run_on called from here

  Executor executor() { return context_.get_executor(); }
  boost::asio::io_context& context() { return context_; }

  /// Run a coroutine there and block this (other) thread until it ends.
  template <class T>
  T wait(Task<T> task) {
    return wait_on(executor(), std::move(task));
  }

 private:
  void run();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  Thread thread_;
};

}  // namespace centroid
