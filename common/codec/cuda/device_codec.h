#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/cuda/kernels.h"
#include "common/codec/payload.h"
#include "common/codec/spec.h"
#include "common/device/device.h"

namespace centroid {

/// A sender's steps for numbers on a device: residual += gradient; encode; residual -= sent.
/// Payloads, residual and momentum are those of ErrorFeedback, bit for bit.
///
/// where   passes over all numbers run in kernels, which write the sent numbers into pinned
///         memory. Indices and selected values (1 % of the numbers) are encoded on the CPU.
/// steps   begin; other work until `done`; encode of each chunk, in any order; begin of the next.
///         The work that encode queues (residual -= sent) precedes that in the stream
/// owns    n / 4 bytes on the device and pinned memory for the sent numbers, sized by the limits
///         and allocated at the start: allocating or freeing it while GPUs add may block all of
///         them
/// limits  no clipping (a GPU cannot follow the order of its norm's sum); one array at a time; sums
///         that are not finite are refused, never sent
/// thread  one at a time
class DeviceCodec {
 public:
  /// Arrays on the device, of `elements` numbers each.
  struct Tensor {
    const float* gradient = nullptr;
    float* residual = nullptr;  ///< initially 0, always finite
    float* momentum = nullptr;  ///< of a spec with momentum only
    std::uint64_t elements = 0;
    std::string name;  ///< for errors: "tensor fc1.weight"
  };

  /// Upper bounds.
  struct Limits {
    std::uint64_t elements = 0;  ///< of an array
    std::uint64_t piece = 0;     ///< of a payload; without a selection an array is one payload
    KeepRatio ratio;             ///< of top-k
  };
  /// For a spec with feedback=on. The device outlives the codec.
  /// fails  invalid_argument (the spec, or feedback is off), unimplemented (clip), and as `device`
  ///        does
  static Result<std::unique_ptr<DeviceCodec>> make(std::string_view spec, const Limits& limits,
                                                   Device& device);
  ~DeviceCodec();

  /// Queue the addition and the selection at `ratio` (of top-k; the caller does the warm-up). Does
  /// not wait; the gradient may change after `done`.
  Status begin(const Tensor& tensor, KeepRatio ratio);
  /// Whether `encode` finds everything ready. Never blocks.
  Result<bool> done() { return stream_->done(); }
  /// Write the payload of numbers [first, first + elements) into `out` (at least
  /// Codec::max_bytes(elements)) and queue residual -= sent; returns the bytes. Once per number.
  /// Waits if it is called before `done`, and in the rare case that a part of a selection is sent
  /// densely.
  /// fails  invalid_argument: sums that are not finite (reported for the whole tensor, with their
  ///        count and the first) or, with f16, too large
  Result<std::size_t> encode(std::uint64_t first, std::uint64_t elements, MutableBytes out);

  /// Numbers that the last `encode` sent, and whether as a dense payload.
  std::uint64_t sent() const { return sent_; }
  bool was_dense() const { return was_dense_; }

  Stream& stream() { return *stream_; }

 private:
  DeviceCodec(CodecSpec spec, const Limits& limits, Device& device)
      : spec_(spec), limits_(limits), device_(device) {}
  Status allocate();
  Status queue_dense(std::uint64_t first, std::uint64_t elements);
  Result<std::size_t> take_dense(std::uint64_t first, std::uint64_t elements, MutableBytes out);
  Result<std::size_t> take_sparse(std::uint64_t first, std::uint64_t elements, std::size_t from,
                                  std::size_t count, MutableBytes out);
  cuda::Dense dense_type() const;
  float* momentum_to_clear() const;
  cuda::Queue queue() const { return cuda::queue_of(device_, *stream_); }

  CodecSpec spec_;
  Limits limits_;
  Device& device_;
  Tensor tensor_;
  std::uint64_t sent_ = 0;
  bool was_dense_ = false;
  bool has_waited_ = false;                          // since `begin`
  bool selects_ = false;                             // the unit is not sent densely
  std::uint64_t dense_first_ = 0, dense_count_ = 0;  // the queued numbers, or none
  std::unique_ptr<DeviceMemory> scratch_, flags_;    // on the device
  std::unique_ptr<DeviceMemory> summary_, index_, value_, rest_, dense_;  // pinned
  std::vector<std::uint32_t> shifted_;
  payload::Scratch values_;
  std::unique_ptr<Stream> stream_;  // last: queued work uses the members above
};

}  // namespace centroid
