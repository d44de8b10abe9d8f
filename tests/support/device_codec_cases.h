#pragma once

// Checks that the codecs' kernels, on a GPU or in tests/support/simt.h, give the bytes of the CPU's
// codecs. Every function compares and reports through GoogleTest.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/codec/cuda/kernels.h"
#include "common/device/device.h"

namespace centroid::device_cases {

/// A device with a stream, and memory for one comparison.
class Machine {
 public:
  explicit Machine(Device& device);
  /// Device memory aligned to 16 bytes, valid until `free_all`.
  std::byte* allocate(std::size_t bytes);
  void free_all();
  /// Copy after all queued work; complete on return.
  void copy(void* to, const void* from, std::size_t bytes);
  cuda::Queue queue() const { return cuda::queue_of(device_, *stream_); }
  Device& device() { return device_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

/// All distributions of codec_topk_cases.h, several k, every boundary, with and without addition.
void compare_selections(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Gradients with NaN and infinities, stored and not.
void compare_nonfinite(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Every dense type and rounding: bytes, flags, and the residual.
void compare_dense(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Blocks of signs whose scale depends on the order of its sum.
void compare_order_of_signs(Machine& machine);
/// Tensors through rounds of ErrorFeedback and of DeviceCodec, with every kind of spec: payloads,
/// residual and momentum.
void compare_rounds(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// DeviceCodec refuses the same input as ErrorFeedback, with the same errors.
void compare_refusals(Machine& machine);

}  // namespace centroid::device_cases
