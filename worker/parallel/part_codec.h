#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/tensor/buffer.h"
#include "transport/collective/group.h"

namespace centroid::parallel {

/// The form of numbers on their way between the ranks of a sharded job: f32, bf16, or int8 with a
/// scale for each 256. Every rank decodes the same bits.
///
/// wire    bf16: plain.h; int8: int8.h without a form. As many bytes whatever the numbers are
/// nonfinite  bf16: as they are; int8: all numbers of the part become NaN
/// thread  any
class PartCodec {
 public:
  /// f32.
  PartCodec() = default;
  /// fails  invalid_argument: another codec, or one with options; names `setting`
  static Result<PartCodec> parse(const std::string& setting, const std::string& spec);

  bool is_f32() const { return !bf16_ && !is_int8_; }
  /// Whether numbers are rounded together with those beside them.
  bool has_blocks() const { return is_int8_; }
  std::uint64_t bytes(std::uint64_t elements) const;
  // `out` and `in` have `bytes` bytes. Not of f32.
  Status encode(std::span<const float> x, MutableBytes out) const;
  Status decode(Bytes in, std::span<float> out) const;
  /// sum += x̂, or sum = x̂ if `is_first`.
  Status add(Bytes in, bool is_first, std::span<float> sum) const;

 private:
  std::shared_ptr<const Codec> bf16_;
  bool is_int8_ = false;
};

/// Operations of a group on numbers of which each rank has a part (shard_of), encoded by one codec.
/// `room` is memory of `room_bytes` that an operation uses until its end.
///
/// thread  any
class CodedParts {
 public:
  /// `group` outlives it.
  CodedParts(const collective::Group& group, PartCodec codec)
      : group_(group), codec_(std::move(codec)) {}
  static std::uint64_t room_bytes(const PartCodec& codec, std::uint64_t elements,
                                  std::uint32_t ranks);

  /// Send each rank its part of our numbers.
  collective::Handle scatter(std::span<const float> whole, Buffer& room,
                             collective::CallOptions options) const;
  /// After it: the mean of the parts that came, added in the order of the ranks. Our own is encoded
  /// too, so that a mean does not depend on who owns it.
  Status take_mean(const Buffer& room, std::uint64_t elements, std::span<float> mean) const;

  /// Send our part to all.
  collective::Handle gather(std::span<const float> part, std::uint64_t elements, Buffer& room,
                            collective::CallOptions options) const;
  /// After it: the parts of all. Our own is decoded too, so that all ranks have the same bits.
  Status take_parts(const Buffer& room, std::span<float> whole) const;
  /// What `take_parts` makes of these numbers, without sending any.
  Status round(std::span<float> whole) const;

 private:
  /// Where part `rank` of so many elements begins in the room.
  std::uint64_t offset_of(std::uint64_t elements, std::uint32_t rank) const;

  const collective::Group& group_;
  const PartCodec codec_;
};

}  // namespace centroid::parallel
