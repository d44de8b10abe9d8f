#include "worker/data/batch_loader.h"

#include <algorithm>
#include <new>
#include <utility>

namespace centroid::worker {

void LoadedBatch::load(const Dataset& data, std::span<const std::uint64_t> samples) {
  const std::size_t n = samples.size();
  is_on_devices = false;
  if (index.data() != samples.data()) index.assign(samples.begin(), samples.end());
  y.resize(n * data.targets());
  if (data.vocabulary > 0) {
    tokens.resize(n * data.features);
    lengths.resize(n);
    data.gather_tokens(index, tokens, y, lengths);
  } else {
    x.resize(n * data.features);
    data.gather(index, x, y);
  }
}

std::uint64_t batch_bytes(const Dataset& data, std::uint64_t samples) {
  const std::uint64_t lengths = data.vocabulary > 0 ? 1 : 0;
  return samples * (sizeof(std::uint64_t) +
                    (data.features + data.targets() + lengths) * sizeof(std::uint32_t));
}

std::uint64_t load_depth(const LoaderRoom& room) {
  const std::uint64_t usable = LoaderRoom::usable(room.free_bytes);
  if (usable <= room.peak_bytes) return 0;
  const std::uint64_t fit =
      (usable - room.peak_bytes) / std::max<std::uint64_t>(room.batch_bytes, 1);
  return std::min({fit, room.most, LoaderRoom::kMaxLoadDepth});
}

BatchLoader::BatchLoader(std::uint64_t depth, BatchStage* stage, std::size_t kept)
    : stage_(stage), taken_(std::max<std::size_t>(kept, 1)) {
  set_depth(depth);
}

BatchLoader::~BatchLoader() = default;

void BatchLoader::set_depth(std::uint64_t depth) {
  {
    const std::lock_guard lock(mutex_);
    depth_ = depth;
    if (depth == 0) expected_.clear();  // no thread would load them
  }
  if (depth > 0 && !thread_.joinable())
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  work_.notify_one();
}

void BatchLoader::expect(const Dataset& data,
                         const std::vector<std::span<const std::uint64_t>>& batches) {
  if (depth_ == 0) return;
  const std::lock_guard lock(mutex_);
  std::size_t kept = 0;
  bool goes_on = data_ == &data;
  // Compares only the ends, which is cheap: `take` compares the whole batch.
  const auto stays = [&](std::span<const std::uint64_t> have) {
    goes_on = goes_on && kept < batches.size() && have.size() == batches[kept].size() &&
              (have.empty() ||
               (have.front() == batches[kept].front() && have.back() == batches[kept].back()));
    kept += goes_on ? 1 : 0;
    return goes_on;
  };
  const auto first_other = [&](auto& queue, const auto& samples_of) {
    auto at = queue.begin();
    while (at != queue.end() && stays(samples_of(*at))) ++at;
    return at;
  };
  const auto other = first_other(ready_, [](const auto& batch) { return std::span(batch.index); });
  for (auto at = other; at != ready_.end(); ++at) put_aside(std::move(*at));
  ready_.erase(other, ready_.end());
  if (is_loading_ && !is_discarded_) is_discarded_ = !stays(*loading_);
  expected_.erase(first_other(expected_, [](const auto& samples) { return std::span(samples); }),
                  expected_.end());
  data_ = &data;
  for (const auto& samples : std::span(batches).subspan(kept))
    expected_.emplace_back(samples.begin(), samples.end());
  work_.notify_one();
}

/// Keep the memory for another batch, and free the copies on devices.
void BatchLoader::put_aside(LoadedBatch batch) {
  batch.on_devices.reset();
  spare_.push_back(std::move(batch));
}

void BatchLoader::stage_at_most(std::uint64_t batches) {
  const std::lock_guard lock(mutex_);
  most_staged_ = batches;
}

const LoadedBatch& BatchLoader::take(const Dataset& data, std::span<const std::uint64_t> samples) {
  LoadedBatch& present = taken_[next_++ % taken_.size()];
  std::unique_lock lock(mutex_);
  const auto is_next = [&] {
    if (data_ != &data) return false;
    if (!ready_.empty()) return std::ranges::equal(ready_.front().index, samples);
    if (is_loading_) return true;  // checked again when it is loaded
    return !expected_.empty() && std::ranges::equal(expected_.front(), samples);
  };
  while (is_next()) {
    if (!ready_.empty()) {
      std::swap(present, ready_.front());
      put_aside(std::move(ready_.front()));
      ready_.pop_front();
      if (2 * ready_.size() <= depth_) work_.notify_one();  // rarely: waking is expensive
      ++hits_;
      return present;
    }
    loaded_.wait(lock);
  }
  is_discarded_ = is_loading_;
  expected_.clear();
  for (LoadedBatch& batch : ready_) put_aside(std::move(batch));
  ready_.clear();
  lock.unlock();
  present.load(data, samples);
  ++misses_;
  return present;
}

void BatchLoader::run(const std::stop_token& stop) {
  LoadedBatch batch;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [&] { return !expected_.empty() && ready_.size() < depth_; };
    if (!work_.wait(lock, stop, has_work)) return;
    const Dataset& data = *data_;
    std::swap(batch.index, expected_.front());
    expected_.pop_front();
    is_loading_ = true;
    is_discarded_ = false;
    loading_ = &batch.index;
    const auto staged =
        static_cast<std::uint64_t>(std::ranges::count(ready_, true, &LoadedBatch::is_on_devices));
    const bool is_to_stage = stage_ != nullptr && staged < most_staged_;
    lock.unlock();
    bool is_loaded = false;
    try {
      batch.load(data, batch.index);
      if (is_to_stage) batch.is_on_devices = stage_->put(data, batch);
      is_loaded = true;
    } catch (const std::bad_alloc&) {
      // `take` loads the batch again and reports the error to its caller.
    }
    lock.lock();
    is_loading_ = false;
    loading_ = nullptr;
    if (is_loaded && !is_discarded_) {
      ready_.push_back(std::move(batch));
      batch = LoadedBatch();
      if (!spare_.empty()) {
        batch = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    loaded_.notify_one();
  }
}

}  // namespace centroid::worker
