#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/payload.h"
#include "common/codec/spec.h"

namespace centroid {

/// Encodes the sum of contributions. The codec can decode the payload, but top-k omits nothing: all
/// numbers that are not zero are sent.
///
/// wire    as the codec's. topk: sparse, or dense if that is not longer (a sum of many selections
///         fills up), values of the codec's type; dense f32 if a number is not finite
/// error   that of the type of the values: f32 none, so that a top-k sum arrives exactly
/// cost    one pass over x
/// thread  one at a time
class SumEncoder {
 public:
  /// fails invalid_argument: the spec
  static Result<std::unique_ptr<SumEncoder>> make(const std::string& spec);

  /// Encode x into out (at least the codec's max_bytes(x.size())); returns the bytes. `stream` as
  /// in Codec::encode.
  Result<std::size_t> encode(std::span<const float> x, MutableBytes out, std::uint64_t stream);
  /// The sparse content of the last `encode`; nothing if it was dense. Valid until the next one.
  struct Sparse {
    std::span<const std::uint32_t> index;
    std::span<const float> value;  ///< x[index]
    std::span<const float> sent;   ///< their values after decoding
  };
  std::optional<Sparse> sparse() const { return sparse_; }
  const Codec& codec() const { return *codec_; }
  const CodecSpec& spec() const { return spec_; }
  /// Sent values may differ from x by rounding.
  bool is_lossy() const { return spec_.values != ValueType::kF32 || is_half_; }

 private:
  SumEncoder(CodecSpec spec, std::unique_ptr<Codec> codec);
  void find_nonzeros(std::span<const float> x);

  CodecSpec spec_;
  std::unique_ptr<Codec> codec_;
  bool is_half_ = false;
  std::vector<std::uint32_t> index_;
  std::vector<float> value_;
  std::size_t count_ = 0;
  bool is_finite_ = true;
  std::optional<Sparse> sparse_;
  payload::Scratch scratch_;
};

}  // namespace centroid
