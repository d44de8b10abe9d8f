#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace centroid::worker {

/// One waiting thread per rank, so that an operation that must run on all ranks at once cannot fail
/// for lack of a thread.
///
/// thread  `run` from one, once
class RankThreads {
 public:
  /// throws std::system_error: no more threads
  explicit RankThreads(std::size_t ranks) : left_(ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads_.emplace_back([this, rank](const std::stop_token& stop) { wait(stop, rank); });
  }
  /// body(rank) for each rank at the same time; blocks until all have returned.
  void run(const std::function<void(std::size_t)>& body) {
    std::unique_lock lock(mutex_);
    body_ = &body;
    changed_.notify_all();
    changed_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  void wait(const std::stop_token& stop, std::size_t rank) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return body_ != nullptr; })) return;
    lock.unlock();
    (*body_)(rank);
    lock.lock();
    if (--left_ == 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t left_;
  std::vector<std::jthread> threads_;  // last: joined before other members are destroyed
};

}  // namespace centroid::worker
