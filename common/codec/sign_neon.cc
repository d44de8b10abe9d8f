// Signs and scales in NEON; the same additions in the same order as the portable loops.
#include "common/codec/sign_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstring>

namespace centroid::sign {

bool quantize_neon(const float* x, std::size_t blocks, std::byte* scales, std::byte* bits) {
  constexpr std::uint32_t kFirst[4] = {1, 2, 4, 8};
  const uint32x4_t first = vld1q_u32(kFirst);
  const float32x4_t part = vdupq_n_f32(1.0f / kBlock);
  for (std::size_t b = 0; b < blocks; ++b, x += kBlock, bits += kBlock / 8, scales += 2) {
    float32x4_t sum[8];
    for (float32x4_t& four : sum) four = vdupq_n_f32(0);
    for (std::size_t i = 0; i < kBlock; i += kParts) {
      std::uint32_t word = 0;
      for (unsigned j = 0; j < 8; ++j) {
        const float32x4_t v = vld1q_f32(x + i + 4 * j);
        const uint32x4_t negative =
            vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(v), 31));
        word |= vaddvq_u32(vandq_u32(negative, first)) << (4 * j);
        sum[j] = vaddq_f32(sum[j], vmulq_f32(vabsq_f32(v), part));
      }
      std::memcpy(bits + i / 8, &word, sizeof word);
    }
    for (unsigned apart = 4; apart > 0; apart /= 2)
      for (unsigned j = 0; j < apart; ++j) sum[j] = vaddq_f32(sum[j], sum[j + apart]);
    const float32x2_t two = vadd_f32(vget_low_f32(sum[0]), vget_high_f32(sum[0]));
    const float total = vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    if (!is_finite(total)) return false;
    const std::uint16_t scale = scale_of(total, kBlock);
    std::memcpy(scales, &scale, sizeof scale);
  }
  return true;
}

}  // namespace centroid::sign

#endif
