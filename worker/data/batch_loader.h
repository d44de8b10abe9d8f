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

/// Device copies of a loaded batch.
class OnDevices {
 public:
  virtual ~OnDevices() = default;
};

/// Samples in the form that a model takes.
struct LoadedBatch {
  std::vector<std::uint64_t> index;  ///< numbers in the data set
  std::vector<float> x;              ///< [samples, features]; empty with tokens
  std::vector<std::uint32_t> tokens, lengths;
  std::vector<std::uint32_t> y;           ///< [samples, targets]
  std::unique_ptr<OnDevices> on_devices;  ///< reset when the batch is reused
  bool is_on_devices = false;             ///< `on_devices` holds this batch

  void load(const Dataset& data, std::span<const std::uint64_t> samples);
};

/// Memory of a loaded batch of `samples` samples.
std::uint64_t batch_bytes(const Dataset& data, std::uint64_t samples);

/// Input of load_depth.
struct LoaderRoom {
  std::uint64_t free_bytes = 0;        ///< before the first step
  std::uint64_t peak_bytes = 0;        ///< of a step
  std::uint64_t batch_bytes = 0;       ///< of one loaded batch
  std::uint64_t most = kMaxLoadDepth;  ///< 0: nothing is loaded ahead
  static constexpr std::uint64_t kMaxLoadDepth = 512;
  /// The part of the free memory that may be used; the rest is for other programs.
  static constexpr std::uint64_t usable(std::uint64_t free_bytes) { return free_bytes / 10 * 9; }
};

/// Number of batches to load ahead: those that fit in 90 % of the free memory less a step's peak,
/// at most `most` and 512. 0: load on demand.
std::uint64_t load_depth(const LoaderRoom& room);

/// Copies loaded batches to devices ahead of time. thread: the loader's.
class BatchStage {
 public:
  virtual ~BatchStage() = default;
  /// True: batch.on_devices holds the batch. False: the batch must be copied when it is used.
  virtual bool put(const Dataset& data, LoadedBatch& batch) = 0;
};

/// Gathers the next batches on its own thread during training.
///
/// thread  `expect`, `take` and `set_depth` from one thread
/// owns    depth + `kept` batches
class BatchLoader {
 public:
  /// Depth 0: no thread, `take` loads. `stage` outlives it. `kept`: batches that are in use at a
  /// time.
  explicit BatchLoader(std::uint64_t depth, BatchStage* stage = nullptr, std::size_t kept = 1);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::uint64_t depth() const { return depth_; }
  /// Change the depth. Loaded batches stay.
  void set_depth(std::uint64_t depth);
  /// Announce the next batches, in order. Batches announced before, loaded or not, stay if they are
  /// a prefix of this list; the others are dropped. `data` must outlive the loader; `batches` are
  /// copied. A batch may be empty.
  void expect(const Dataset& data, const std::vector<std::span<const std::uint64_t>>& batches);
  /// The batch of these samples. If it is the next expected one, waits until it is loaded; else
  /// loads it now and drops the expected batches. Valid until `kept` more calls of `take`.
  const LoadedBatch& take(const Dataset& data, std::span<const std::uint64_t> samples);
  /// Limit how many of the waiting batches are on devices; initially 0.
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
  std::deque<std::vector<std::uint64_t>> expected_;  // not yet loading
  std::deque<LoadedBatch> ready_;                    // in order
  std::vector<LoadedBatch> spare_;
  bool is_loading_ = false, is_discarded_ = false;       // of the batch that is being loaded
  const std::vector<std::uint64_t>* loading_ = nullptr;  // its samples
  std::jthread thread_;                                  // last
};

}  // namespace centroid::worker
