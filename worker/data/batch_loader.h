#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "worker/data/data_source.h"

namespace centroid::worker {

/// What devices have of a loaded batch.
class OnDevices {
 public:
  virtual ~OnDevices() = default;
};

/// Samples as a model takes them.
struct LoadedBatch {
  std::vector<std::uint64_t> index;  ///< numbers in the data set
  std::vector<float> x;              ///< [samples, features]; empty with tokens
  std::vector<std::uint32_t> tokens, lengths;
  std::vector<std::uint32_t> y;           ///< [samples, targets]
  std::unique_ptr<OnDevices> on_devices;  ///< goes when the batch is not needed any more
  bool is_on_devices = false;             ///< and it holds this batch

  void load(const Dataset& data, std::span<const std::uint64_t> samples);
};

/// Memory that a loaded batch of so many samples takes.
std::uint64_t batch_bytes(const Dataset& data, std::uint64_t samples);

/// What a depth is computed from.
struct LoaderRoom {
  std::uint64_t free_bytes = 0;        ///< before the first step
  std::uint64_t peak_bytes = 0;        ///< that a step takes
  std::uint64_t batch_bytes = 0;       ///< of one loaded batch
  std::uint64_t most = kMaxLoadDepth;  ///< 0: nothing is loaded ahead
  static constexpr std::uint64_t kMaxLoadDepth = 512;
  /// Of what is free: the rest is for others.
  static constexpr std::uint64_t usable(std::uint64_t free_bytes) { return free_bytes / 10 * 9; }
};

/// Batches to load ahead: what 90 % of the free memory without a step's peak holds, at most `most`
/// and 512. 0: load when it is asked for.
std::uint64_t load_depth(const LoaderRoom& room);

/// Brings loaded batches to devices ahead of time. thread: the loader's.
class BatchStage {
 public:
  virtual ~BatchStage() = default;
  /// True: batch.on_devices holds it. False: it has to be brought when its turn comes.
  virtual bool put(const Dataset& data, LoadedBatch& batch) = 0;
};

/// Gathers batches on a thread of its own while others are trained on.
///
/// thread  `expect`, `take` and `set_depth` from one thread
/// owns    depth + `kept` batches
class BatchLoader {
 public:
  /// Depth 0: no thread, `take` loads. `stage` outlives it. `kept`: batches that are used at a
  /// time.
  explicit BatchLoader(std::uint64_t depth, BatchStage* stage = nullptr, std::size_t kept = 1);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::uint64_t depth() const { return depth_; }
  /// From now on so many; what is loaded stays.
  void set_depth(std::uint64_t depth);
  /// These batches come next, in this order. Of what was expected before stays, loaded or not, what
  /// this list begins with; the rest is forgotten. `data` must outlive it, `batches` are copied.
  /// Empty ones are fine.
  void expect(const Dataset& data, const std::vector<std::span<const std::uint64_t>>& batches);
  /// The batch of these samples: the loaded one when it was expected next, waiting for it where it
  /// is on the way; else loaded now, and what was expected is forgotten. Valid until the
  /// next `take`, or with `kept` until so many have followed.
  const LoadedBatch& take(const Dataset& data, std::span<const std::uint64_t> samples);
  /// Let at most so many of the batches that wait be on devices; 0, as in the beginning: none.
  void stage_at_most(std::uint64_t batches);
  std::uint64_t hits() const { return hits_; }      ///< taken as expected
  std::uint64_t misses() const { return misses_; }  ///< loaded on demand

 private:
  void run(const std::stop_token& stop);
  void put_aside(LoadedBatch batch);

  std::uint64_t depth_ = 0;  // written under mutex_, by the caller's thread
  BatchStage* const stage_;
  std::vector<LoadedBatch> taken_;  // the newest, in turn
  std::size_t next_ = 0;            // of taken_
  std::uint64_t hits_ = 0, misses_ = 0;
  std::mutex mutex_;
  std::condition_variable_any work_, loaded_;
  // Under mutex_:
  std::uint64_t most_staged_ = 0;
  const Dataset* data_ = nullptr;
  std::deque<std::vector<std::uint64_t>> expected_;  // not begun
  std::deque<LoadedBatch> ready_;                    // in order
  std::vector<LoadedBatch> spare_;
  bool is_loading_ = false, is_discarded_ = false;       // of the batch on the way
  const std::vector<std::uint64_t>* loading_ = nullptr;  // its samples
  std::jthread thread_;                                  // last
};

}  // namespace centroid::worker
