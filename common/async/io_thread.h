#pragma once

#include <string>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "common/async/task.h"

namespace centroid {

/// One named thread that runs one io_context(1). Objects that live on its executor need no locks.
class IoThread {
 public:
  explicit IoThread(const std::string& name);
  ~IoThread();  ///< stops and joins; no other thread may be leaving a run_on called from here

  Executor executor() { return context_.get_executor(); }
  boost::asio::io_context& context() { return context_; }

  /// Run a coroutine there and block this (other) thread until it ends.
  template <class T>
  T wait(Task<T> task);

 private:
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace centroid

#include <future>

#include <boost/asio/use_future.hpp>

template <class T>
T centroid::IoThread::wait(Task<T> task) {
  auto future =
      boost::asio::co_spawn(context_, to_optional(std::move(task)), boost::asio::use_future);
  if constexpr (std::is_void_v<T>)
    future.get();
  else
    return *future.get();
}
