// Quantisation in NEON; the same operations per element as the portable loops.
#include "common/codec/int8_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstring>

namespace centroid::int8 {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;

inline float32x4_t dither4(uint32x4_t number, Key key) {
  uint32x4_t x = vaddq_u32(number, vdupq_n_u32(key.first));
  x = vmulq_u32(veorq_u32(x, vshrq_n_u32(x, 16)), vdupq_n_u32(kMix1));
  x = veorq_u32(veorq_u32(x, vshrq_n_u32(x, 15)), vdupq_n_u32(key.second));
  x = vshrq_n_u32(vmulq_u32(x, vdupq_n_u32(kMix2)), 16);
  return vaddq_f32(vmulq_f32(vcvtq_f32_u32(x), vdupq_n_f32(kDitherStep)),
                   vdupq_n_f32(kDitherFirst));
}

inline std::uint32_t largest_of(const float* x) {
  const uint32x4_t magnitude = vdupq_n_u32(kMagnitude);
  uint32x4_t largest[4] = {vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)};
  for (std::size_t i = 0; i < kBlock; i += 16)
    for (std::size_t j = 0; j < 4; ++j) {
      const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i + 4 * j));
      largest[j] = vmaxq_u32(largest[j], vandq_u32(bits, magnitude));
    }
  return vmaxvq_u32(
      vmaxq_u32(vmaxq_u32(largest[0], largest[1]), vmaxq_u32(largest[2], largest[3])));
}

template <Rounding kRounding>
bool blocks_neon(const float* x, std::size_t blocks, std::uint32_t first, Key key,
                 std::byte* scales, std::byte* out) {
  constexpr std::uint32_t kCount[4] = {0, 1, 2, 3};
  const uint32x4_t four = vdupq_n_u32(4);
  uint32x4_t number = vaddq_u32(vdupq_n_u32(first), vld1q_u32(kCount));
  for (std::size_t b = 0; b < blocks; ++b, x += kBlock, out += kBlock, scales += 2) {
    const std::uint32_t largest = largest_of(x);
    if (largest >= limit(kRounding)) return false;
    const Step step = step_of(largest, kRounding);
    std::memcpy(scales, &step.stored, sizeof step.stored);
    const float32x4_t inverse = vdupq_n_f32(step.inverse);
    for (std::size_t i = 0; i < kBlock; i += 16) {
      int16x4_t q[4];
      for (std::size_t j = 0; j < 4; ++j) {
        float32x4_t quotient = vmulq_f32(vld1q_f32(x + i + 4 * j), inverse);
        if constexpr (kRounding == Rounding::kStochastic) {
          quotient = vaddq_f32(quotient, dither4(number, key));
          number = vaddq_u32(number, four);
        }
        q[j] = vmovn_s32(vcvtnq_s32_f32(quotient));  // to nearest, ties to even; at most 127
      }
      const int8x8_t low = vmovn_s16(vcombine_s16(q[0], q[1]));
      const int8x8_t high = vmovn_s16(vcombine_s16(q[2], q[3]));
      vst1q_s8(reinterpret_cast<std::int8_t*>(out + i), vcombine_s8(low, high));
    }
  }
  return true;
}

}  // namespace

bool quantize_neon(const float* x, std::size_t blocks, std::uint32_t first, Rounding rounding,
                   Key key, std::byte* scales, std::byte* out) {
  return rounding == Rounding::kNearest
             ? blocks_neon<Rounding::kNearest>(x, blocks, first, key, scales, out)
             : blocks_neon<Rounding::kStochastic>(x, blocks, first, key, scales, out);
}

}  // namespace centroid::int8

#endif
