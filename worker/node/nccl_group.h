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

/// The GPUs of one process, adding among themselves through NCCL: a rank for each, driven by a
/// thread of its own.
///
/// mean    each rank scales by its weight / total weight, then they are summed: the mean by samples
///         of all other paths. A rank without samples takes part with weight 0
/// order   every rank makes the same calls in the same order; tensors of one call are one group
/// watch   a thread of the group's own asks every communicator for errors and looks at the age of
///         what is under way, so a rank that never comes ends the wait of the others whatever they
///         wait in, and whoever is joined first
/// abort   once, by the group's thread, for whoever sees the first failure: it waits a moment for
///         calls to come back, and what then still waits inside NCCL is ended by the abort. All
///         calls fail with the cause from then on, and none returns before the abort is done. NCCL
///         cannot go on after it: make a new group
/// thread  calls of one rank: one at a time; `abort`, `failure`: any
class NcclGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout{60'000};  ///< of one operation, from its call to its end
    std::chrono::milliseconds poll{5};
  };
  /// A communicator for each of the CUDA devices, all made at once, and a thread that will end it.
  /// fails as NCCL says; resource_exhausted: no more threads
  static Result<std::unique_ptr<NcclGroup>> make(std::shared_ptr<const nccl::Library> library,
                                                 const std::vector<int>& devices, Options options);
  /// Aborts what is under way.
  ~NcclGroup();

  std::size_t size() const { return ranks_.size(); }
  /// tensors[i] = sum over ranks of weight / total * tensors[i], in place, in the order of `stream`
  /// (a cudaStream_t). Returns when it is queued: `wait` for its end.
  Status all_reduce(std::size_t rank, std::span<const std::span<float>> tensors, double weight,
                    double total, void* stream);
  /// into [n] = part `rank` of that sum, from [size * n]. Parts are equal: what is no multiple is
  /// padded by who calls.
  /// fails  invalid_argument, without a call to NCCL: other lengths (says both, and what to take)
  Status reduce_scatter(std::size_t rank, std::span<const float> from, std::span<float> into,
                        double weight, double total, void* stream);
  /// into [size * n] = the ranks' from [n], one after the other.
  ///
  /// fails  as reduce_scatter
  Status all_gather(std::size_t rank, std::span<const float> from, std::span<float> into,
                    void* stream);
  Status broadcast(std::size_t rank, std::span<const std::span<float>> tensors, std::size_t root,
                   void* stream);
  /// Calls of `rank` so far: what is queued behind them is done when they are.
  std::uint64_t calls(std::size_t rank) const;
  /// Block until the first `calls` of `rank` are done, or all that were made. `is_done` asks its
  /// stream, or an event behind them. What was called later stays under the watch.
  Status wait(std::size_t rank, const std::function<Result<bool>()>& is_done,
              std::optional<std::uint64_t> calls = std::nullopt);
  /// They are done, as the caller has seen without waiting.
  void over(std::size_t rank, std::uint64_t calls);

  /// Before memory of the devices is read for a snapshot: nothing may be under way, for a copy
  /// would wait behind it for ever. Aborts where something is; ok: nothing was, and the group
  /// lives.
  Status settle();
  void abort(const std::string& why);
  /// Why the group was aborted.
  std::optional<Error> failure() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// A call whose end nobody has seen.
  struct Pending {
    std::uint64_t number = 0;  ///< of the rank's calls, from 1
    std::string what;
    Clock::time_point begun;
  };
  struct Rank {
    nccl::Comm comm = nullptr;
    std::deque<Pending> pending;
    std::uint64_t calls = 0;
    bool is_calling = false;  ///< a thread is, or is about to be, inside NCCL
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
  bool is_released_ = false;      // under mutex_: the communicators are
  std::optional<RankThreads> enders_;
  std::jthread watcher_;  // last: joined first
};

}  // namespace centroid::worker
