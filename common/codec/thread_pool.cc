#include "common/codec/thread_pool.h"

#include "common/base/relax.h"

namespace centroid {
namespace {

// Polls before a thread sleeps: the stages of one selection follow each other within microseconds.
constexpr int kPolls = 2000;

void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < kPolls; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  turn_.fetch_add(1, std::memory_order_release);
  turn_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run(const std::function<void(int)>& part) {
  part_ = &part;
  busy_.store(static_cast<std::uint32_t>(helpers_.size()), std::memory_order_relaxed);
  turn_.fetch_add(1, std::memory_order_release);
  turn_.notify_all();
  part(0);
  for (std::uint32_t left = busy_.load(std::memory_order_acquire); left != 0;
       left = busy_.load(std::memory_order_acquire))
    wait_while(busy_, left);
}

void ThreadPool::help(int index) {
  for (std::uint32_t seen = 0;;) {
    wait_while(turn_, seen);
    ++seen;  // turns are counted one by one: the next begins only when all are done with this one
    if (stop_) return;
    (*part_)(index);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
  }
}

}  // namespace centroid
