#include "worker/node/tensor_reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace centroid::worker {

namespace {

/// Elements summed over all devices before the next ones: 16 KiB fit in the first-level cache.
constexpr std::size_t kBlock = 4096;

}  // namespace

TensorReducer::TensorReducer(const Manifest& manifest, std::vector<std::span<const float>> sources,
                             std::span<float> out)
    : sources_(std::move(sources)),
      out_(out),
      weights_(sources_.size()),
      missing_(new std::atomic<std::uint32_t>[manifest.size()]) {
  positions_.push_back(0);
  for (const auto& tensor : manifest) positions_.push_back(positions_.back() + tensor.elements());
}

void TensorReducer::begin(std::span<const std::uint64_t> samples,
                          const std::function<void(TensorId)>* on_ready) {
  const auto total =
      static_cast<double>(std::accumulate(samples.begin(), samples.end(), std::uint64_t{0}));
  for (std::size_t d = 0; d < sources_.size(); ++d)
    weights_[d] = total > 0 ? static_cast<float>(static_cast<double>(samples[d]) / total) : 0.0F;
  for (std::size_t t = 0; t + 1 < positions_.size(); ++t)
    missing_[t].store(static_cast<std::uint32_t>(sources_.size()), std::memory_order_relaxed);
  on_ready_ = on_ready;
}

void TensorReducer::ready(TensorId tensor) {
  // Release what this device wrote, acquire what the others wrote.
  if (missing_[tensor.value].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (sources_.front().data() != out_.data())
    reduce(positions_[tensor.value], positions_[tensor.value + 1]);
  if (*on_ready_) (*on_ready_)(tensor);
}

void TensorReducer::reduce(std::size_t begin, std::size_t end) const {
  for (std::size_t from = begin; from < end; from += kBlock) {
    const std::size_t count = std::min(kBlock, end - from);
    float* __restrict out = out_.data() + from;
    std::fill_n(out, count, 0.0F);
    for (std::size_t d = 0; d < sources_.size(); ++d) {
      const float weight = weights_[d];
      if (weight == 0.0F) continue;
      const float* __restrict in = sources_[d].data() + from;
      for (std::size_t i = 0; i < count; ++i) out[i] += weight * in[i];
    }
  }
}

}  // namespace centroid::worker
