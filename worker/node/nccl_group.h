#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "worker/node/nccl_library.h"
#include "worker/node/rank_threads.h"

namespace centroid::worker {

/// Collectives between the GPUs of one process through NCCL. Each GPU is a rank, driven by its own
/// thread.
///
/// mean    each rank scales by its weight / total weight before the sum, which gives the mean over
///         samples. A rank without samples takes part with weight 0
/// order   every rank makes the same calls in the same order; tensors of one call are one group
/// watch   the group's watch thread polls every communicator for errors and the age of pending
///         calls. A rank that never calls therefore ends the wait of the others, wherever they
///         block
/// abort   once, by the watch thread, at the first failure. It waits briefly for calls to return;
///         the abort ends those that still block inside NCCL. From then on all calls fail with the
///         cause, and none returns before the abort is complete. NCCL cannot be used afterwards:
///         make a new group
/// thread  calls of one rank: one at a time; `abort`, `failure`: any
class NcclGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout{60'000};  ///< of one operation, from its call to its end
    std::chrono::milliseconds poll{5};
  };
  /// Create a communicator for each CUDA device, all at once, and the threads that end them.
  /// fails  as NCCL; resource_exhausted: no more threads
  static Result<std::unique_ptr<NcclGroup>> make(std::shared_ptr<const nccl::Library> library,
                                                 const std::vector<int>& devices, Options options);
  /// Aborts pending calls.
  ~NcclGroup();

  std::size_t size() const { return ranks_.size(); }
  /// tensors[i] = sum over ranks of weight / total * tensors[i], in place, in the order of `stream`
  /// (a cudaStream_t). Returns when it is queued; `wait` blocks until it is complete.
  Status all_reduce(std::size_t rank, std::span<const std::span<float>> tensors, double weight,
                    double total, void* stream);
  /// into [n] = part `rank` of that sum, from [size * n]. Parts have equal length: the caller pads.
  /// fails  invalid_argument, without a call to NCCL: other lengths (names both and the right one)
  Status reduce_scatter(std::size_t rank, std::span<const float> from, std::span<float> into,
                        double weight, double total, void* stream);
  /// into [size * n] = the ranks' from [n], one after the other.
  ///
  /// fails  as reduce_scatter
  Status all_gather(std::size_t rank, std::span<const float> from, std::span<float> into,
                    void* stream);
  Status broadcast(std::size_t rank, std::span<const std::span<float>> tensors, std::size_t root,
                   void* stream);
  /// Number of calls of `rank` so far.
  std::uint64_t calls(std::size_t rank) const;
  /// Block until the first `calls` calls of `rank`, by default all, are complete. `is_done` polls
  /// the rank's stream, or an event after the calls. The watch thread still watches later calls.
  Status wait(std::size_t rank, const std::function<Result<bool>()>& is_done,
              std::optional<std::uint64_t> calls = std::nullopt);
  /// Record that calls are complete, when the caller knows without `wait`.
  void over(std::size_t rank, std::uint64_t calls);

  /// Call before memory of the devices is read for a snapshot: a copy would wait forever for a
  /// pending call. Aborts the group if a call is pending; ok: none was.
  Status settle();
  void abort(const std::string& why);
  /// Why the group was aborted.
  std::optional<Error> failure() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// A call that is not known to be complete.
  struct Pending {
    std::uint64_t number = 0;  ///< among the rank's calls, from 1
    std::string what;
    Clock::time_point begun;
  };
  struct Rank {
    nccl::Comm comm = nullptr;
    std::deque<Pending> pending;
    std::uint64_t calls = 0;
    bool is_calling = false;  ///< a thread is inside NCCL, or about to be
  };
  NcclGroup(std::shared_ptr<const nccl::Library> library, Options options)
      : library_(std::move(library)), options_(options) {}
  Status call(std::size_t rank, const std::string& what,
              const std::function<int(nccl::Comm)>& body);
  Status scaled(std::size_t rank, const std::string& what, double weight, double total,
                const std::function<int(nccl::Comm, int op)>& body);
  void fail(const std::string& why);
  Status ended() const;
  void watch(const std::stop_token& stop);
  void abort_all();
  void on_all(const std::function<int(nccl::Comm)>& end);
  std::string find_trouble();

  std::shared_ptr<const nccl::Library> library_;
  Options options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::vector<Rank> ranks_;
  std::optional<Error> failure_;  // under mutex_
  bool is_released_ = false;      // under mutex_: communicators are freed
  std::optional<RankThreads> enders_;
  std::jthread watcher_;  // last: joined first
};

}  // namespace centroid::worker
