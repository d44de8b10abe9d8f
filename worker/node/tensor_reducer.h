#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/tensor.h"

namespace centroid::worker {

/// Weighted mean of the devices' gradients, tensor by tensor, as soon as the last device has a
/// tensor ready.
///
/// Every device reports the tensors in the same order. The device that reports a tensor last
/// reduces it and calls on_ready before it reports the next tensor, which is incomplete without
/// that report. So calls are serialised, in order, without a lock.
///
/// bits    the sum is in device order on whichever device: equal input gives equal bits
class TensorReducer {
 public:
  /// `sources`: one gradient per device, laid out as the manifest; `out` may be the only source
  /// (then nothing is copied).
  TensorReducer(const Manifest& manifest, std::vector<std::span<const float>> sources,
                std::span<float> out);

  /// Start a step: the number of samples of each device, and the callback. No device may be in
  /// `ready`.
  void begin(std::span<const std::uint64_t> samples, const std::function<void(TensorId)>* on_ready);
  /// One device has this tensor. thread: the device's.
  void ready(TensorId tensor);

 private:
  void reduce(std::size_t begin, std::size_t end) const;

  std::vector<std::size_t> positions_;  // first element of each tensor, plus the end
  std::vector<std::span<const float>> sources_;
  std::span<float> out_;
  std::vector<float> weights_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> missing_;  // devices, per tensor
  const std::function<void(TensorId)>* on_ready_ = nullptr;
};

}  // namespace centroid::worker
