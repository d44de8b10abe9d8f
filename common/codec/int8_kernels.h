#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/base/random.h"
#include "common/codec/int8.h"

namespace centroid::int8 {

/// Scale of a block and the factor of its numbers.
struct Step {
  std::uint16_t stored = 0;  ///< bfloat16
  float inverse = 0;
};

/// `magnitude`: the bits of the block's largest |x|, below `limit`.
constexpr Step step_of(std::uint32_t magnitude, Rounding rounding) {
  const float largest = std::bit_cast<float>(magnitude);
  if (largest < 0x1p-119f) return {};
  const auto bits = std::bit_cast<std::uint32_t>(largest / 127.0f);
  const std::uint32_t up =
      rounding == Rounding::kStochastic ? 0xFFFFu : 0x7FFFu + ((bits >> 16) & 1u);
  const auto stored = static_cast<std::uint16_t>((bits + up) >> 16);
  const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16);
  // A little less than 1 / scale: then a quotient above 1/2 comes from |x| > scale / 2, so x - x̂ is
  // exact (Sterbenz), and no quotient is above 127 when the scale was rounded up.
  return {stored, (1.0f / scale) * (1.0f - 0x1p-21f)};
}

/// The two halves of a stream's key.
struct Key {
  std::uint32_t first, second;
};
constexpr Key key_of(std::uint64_t stream) {
  const std::uint64_t mixed = mix64(stream);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

/// 16 random bits of element i.
/// source  the constants: Wellons 2018, "Prospecting for hash functions" (lowbias32), with a key
constexpr std::uint32_t kMix1 = 0x7FEB352Du, kMix2 = 0x846CA68Bu;
constexpr std::uint32_t random16(Key key, std::uint32_t i) {
  std::uint32_t x = i + key.first;
  x = (x ^ (x >> 16)) * kMix1;
  x = (x ^ (x >> 15) ^ key.second) * kMix2;
  return x >> 16;
}

/// Added before rounding to nearest: uniform over the middles of 2^16 steps of (-1/2, 1/2), so no
/// sum is half-way and none is rounded beyond 127. All of it is exact in float32.
constexpr float kDitherStep = 0x1p-16f, kDitherFirst = 0x1p-17f - 0.5f;

constexpr float dither(Key key, std::uint32_t i) {
  return static_cast<float>(static_cast<std::int32_t>(random16(key, i))) * kDitherStep +
         kDitherFirst;
}

/// Adding and subtracting this rounds to the nearest integer, ties to even.
constexpr float kRound = 0x1.8p23f;
/// The eight bits of a quotient: the low bits of its rounded sum are the integer.
constexpr std::uint8_t rounded(float quotient) {
  return static_cast<std::uint8_t>(std::bit_cast<std::int32_t>(quotient + kRound) & 0xFF);
}
/// x̂ of eight bits, exact.
constexpr float dequantized(float scale, std::uint8_t bits) {
  return scale * static_cast<float>(static_cast<std::int8_t>(bits));
}

/// Quantise complete blocks: `blocks` times 256 numbers, the first of which is number `first` of
/// its stream. Returns false at a number beyond the limit.
using QuantizeBlocks = bool (*)(const float* x, std::size_t blocks, std::uint32_t first,
                                Rounding rounding, Key key, std::byte* scales, std::byte* out);

bool quantize_portable(const float* x, std::size_t n, std::uint32_t first, Rounding rounding,
                       Key key, std::byte* scales, std::byte* out);
#if defined(__x86_64__)
bool quantize_avx2(const float* x, std::size_t blocks, std::uint32_t first, Rounding rounding,
                   Key key, std::byte* scales, std::byte* out);
bool quantize_avx512(const float* x, std::size_t blocks, std::uint32_t first, Rounding rounding,
                     Key key, std::byte* scales, std::byte* out);
#elif defined(__aarch64__)
bool quantize_neon(const float* x, std::size_t blocks, std::uint32_t first, Rounding rounding,
                   Key key, std::byte* scales, std::byte* out);
#endif

}  // namespace centroid::int8
