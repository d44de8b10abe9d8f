#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "common/codec/spec.h"

namespace centroid::int8 {

/// Numbers that share a scale.
/// source  Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", section 2.1
constexpr std::size_t kBlock = 256;

/// ceil(n / 256) scales of 2 bytes, n quantised numbers.
constexpr std::size_t bytes(std::size_t n) { return 2 * ((n + kBlock - 1) / kBlock) + n; }

/// Rounding, and the random numbers of stochastic rounding: element i of `stream` gets the same
/// number on every machine and in every encoding.
struct Draw {
  Rounding rounding = Rounding::kNearest;
  std::uint64_t stream = 0;
};

/// Largest scale, so that 127 times a scale is finite; as bfloat16.
constexpr std::uint16_t kLargestScale = 0x7C01;
/// Numbers whose bits of |x| reach this limit cannot be quantised: those that are not finite and,
/// if scales are rounded up, the last 0.01 % below infinity.
constexpr std::uint32_t limit(Rounding rounding) {
  return rounding == Rounding::kNearest ? 0x7F800000u : 0x7F7FFC01u;
}

/// Quantise x to eight bits with a scale per block.
///
/// shape   x [n] float32; out: ceil(n / 256) bfloat16 scales, then n signed bytes q
/// units   x̂ = scale * q, exact in float32; scale = max |x| / 127 of the block, rounded to bfloat16
///         (up when stochastic); 0 when max |x| < 2^-119
/// error   nearest: |x - x̂| <= 0.5001 scale, and x - x̂ is exact in float32; stochastic:
///         |x - x̂| < scale and the mean of x̂ is x (steps of 2^-16 scale)
/// thread  any
/// cost    one pass, no allocation
/// fails   returns false when a number is beyond `limit`; out is then undefined
/// source  Alistarh et al. 2017, "QSGD", section 3 (stochastic rounding)
bool quantize(std::span<const float> x, Draw draw, std::byte* out);

/// Whether `quantize` can have written the bytes: scales within their range, no -128.
/// fails invalid_argument
Status check(Bytes in, std::size_t n);

/// Sum of x̂[i]²; `in` has the right length, otherwise unchecked.
double squares(Bytes in, std::size_t n);

/// out[i] = x̂[i]; `in` is checked.
void dequantize(Bytes in, std::span<float> out);
/// acc[i] += weight * x̂[i], or = when `first`; multiplied and added with a rounding each.
void dequantize_add(Bytes in, float weight, bool first, std::span<float> acc);

}  // namespace centroid::int8
