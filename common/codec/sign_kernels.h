#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/codec/format.h"
#include "common/codec/sign.h"

namespace centroid::sign {

/// The order of a block's sum: number i goes to part i mod 32, in the order of i; then parts that
/// are 16, 8, 4, 2 and 1 apart are added. A warp of a GPU does the same with a part per lane.
constexpr std::size_t kParts = 32;

constexpr std::uint32_t kSignBit = 0x80000000u;

/// Contribution of a number to the sum: 1/256 of its magnitude, so that no sum overflows.
constexpr float part_of(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & ~kSignBit) * (1.0f / kBlock);
}

/// The scale of `count` numbers, as bfloat16. `sum` of their parts; not finite if one is not.
constexpr std::uint16_t scale_of(float sum, std::size_t count) {
  constexpr float kMost = 3.402823466e+38f;
  float mean = sum;
  if (count != kBlock) mean = sum * (static_cast<float>(kBlock) / static_cast<float>(count));
  return format::FiniteBf16::shrink(mean < kMost ? mean : kMost);
}

constexpr bool is_finite(float sum) {
  return (std::bit_cast<std::uint32_t>(sum) & ~kSignBit) < 0x7F800000u;
}

/// x̂ of a number.
constexpr float dequantized(float scale, std::uint32_t is_negative) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) | is_negative << 31);
}

/// Sum the parts of each of `blocks` complete blocks, and write scales and bits. Returns false at a
/// number that is not finite.
using QuantizeBlocks = bool (*)(const float* x, std::size_t blocks, std::byte* scales,
                                std::byte* bits);

bool quantize_portable(const float* x, std::size_t n, std::byte* scales, std::byte* bits);
#if defined(__x86_64__)
bool quantize_avx2(const float* x, std::size_t blocks, std::byte* scales, std::byte* bits);
bool quantize_avx512(const float* x, std::size_t blocks, std::byte* scales, std::byte* bits);
#elif defined(__aarch64__)
bool quantize_neon(const float* x, std::size_t blocks, std::byte* scales, std::byte* bits);
#endif

}  // namespace centroid::sign
