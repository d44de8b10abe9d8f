// The loops of top-k in NEON, which every aarch64 machine has.
#include "common/codec/topk_kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <array>

namespace centroid::topk {
namespace {

inline uint32x4_t key4(float32x4_t x) {
  return vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(kMagnitude));
}

// 16 bytes of ones or zeros from as many compare results.
inline uint8x16_t bytes_of(const uint32x4_t* hit) {
  const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(hit[0]), vreinterpretq_u16_u32(hit[1]));
  const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(hit[2]), vreinterpretq_u16_u32(hit[3]));
  return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

// 64 bits, one per element: each byte selects the bit of its place among eight, and three pairwise
// sums join them.
inline std::uint64_t bits_of(const uint8x16_t* hit) {
  constexpr std::uint8_t kPlaces[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t places = vld1q_u8(kPlaces);
  const uint8x16_t low = vpaddq_u8(vandq_u8(hit[0], places), vandq_u8(hit[1], places));
  const uint8x16_t high = vpaddq_u8(vandq_u8(hit[2], places), vandq_u8(hit[3], places));
  const uint8x16_t all = vpaddq_u8(low, high);
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

void mark_neon(const float* x, std::size_t n, std::uint32_t threshold, std::uint64_t* masks) {
  const uint32x4_t least = vdupq_n_u32(threshold);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint8x16_t bytes[4];
    for (std::size_t j = 0; j < 4; ++j) {
      const float* p = x + i + 16 * j;
      __builtin_prefetch(p + kAhead);
      const uint32x4_t hit[4] = {
          vcgeq_u32(key4(vld1q_f32(p)), least), vcgeq_u32(key4(vld1q_f32(p + 4)), least),
          vcgeq_u32(key4(vld1q_f32(p + 8)), least), vcgeq_u32(key4(vld1q_f32(p + 12)), least)};
      bytes[j] = bytes_of(hit);
    }
    masks[i / 64] = bits_of(bytes);
  }
  if (i < n) internal::kPortable.mark(x + i, n - i, threshold, masks + i / 64);
}

std::size_t add_and_mark_neon(const float* g, float* e, std::size_t n, std::uint32_t threshold,
                              std::uint64_t* masks) {
  const uint32x4_t least = vdupq_n_u32(threshold);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    float32x4_t sum[16];
    uint8x16_t bytes[4];
    uint32x4_t most = vdupq_n_u32(0);
    for (std::size_t j = 0; j < 4; ++j) {
      uint32x4_t hit[4];
      for (std::size_t q = 0; q < 4; ++q) {
        const std::size_t at = 16 * j + 4 * q;
        sum[4 * j + q] = vaddq_f32(vld1q_f32(e + i + at), vld1q_f32(g + i + at));
        const uint32x4_t key = key4(sum[4 * j + q]);
        most = vmaxq_u32(most, key);
        hit[q] = vcgeq_u32(key, least);
      }
      bytes[j] = bytes_of(hit);
    }
    if (vmaxvq_u32(most) >= kInfinity) [[unlikely]]
      return i;
    for (std::size_t j = 0; j < 16; ++j) vst1q_f32(e + i + 4 * j, sum[j]);
    masks[i / 64] = bits_of(bytes);
  }
  if (i == n) return n;
  return i + internal::kPortable.add_and_mark(g + i, e + i, n - i, threshold, masks + i / 64);
}

// Counting bits goes through the vector registers: all words of a block at once, so that the loop
// over them does not wait for it.
std::size_t expand_neon(const std::uint64_t* masks, std::size_t words, std::uint32_t base,
                        std::uint32_t* out) {
  alignas(16) std::array<std::uint64_t, kWords> counts;
  std::uint32_t* to = out;
  for (std::size_t first = 0; first < words; first += kWords) {
    const std::size_t some = words - first < kWords ? words - first : kWords;
    std::size_t w = 0;
    for (; w + 2 <= some; w += 2) {
      const uint8x16_t ones = vcntq_u8(vreinterpretq_u8_u64(vld1q_u64(masks + first + w)));
      vst1q_u64(counts.data() + w, vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(ones))));
    }
    if (w < some) counts[w] = static_cast<std::uint64_t>(std::popcount(masks[first + w]));
    for (w = 0; w < some; ++w, base += 64) {
      std::uint64_t mask = masks[first + w];
      for (std::size_t j = 0; j < 3; ++j) {  // usually there are at most three
        to[j] = base + static_cast<std::uint32_t>(std::countr_zero(mask));
        mask &= mask - 1;
      }
      for (std::size_t j = 3; j < counts[w]; ++j) {
        to[j] = base + static_cast<std::uint32_t>(std::countr_zero(mask));
        mask &= mask - 1;
      }
      to += counts[w];
    }
  }
  return static_cast<std::size_t>(to - out);
}

}  // namespace

namespace internal {
const Kernels kNeon{"neon", mark_neon, add_and_mark_neon, expand_neon};
}  // namespace internal

}  // namespace centroid::topk

#endif
