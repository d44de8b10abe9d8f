// Signs and scales in AVX2 and AVX-512; the same additions in the same order as the portable loops.
#include "common/codec/sign_kernels.h"

#if defined(__x86_64__)

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <cstring>

#define CENTROID_AVX2 [[gnu::target("avx2")]]
#define CENTROID_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

namespace centroid::sign {
namespace {

constexpr std::size_t kAhead = 1024;  // floats between prefetch and load
constexpr float kPart = 1.0f / kBlock;

/// Add parts 0 to 7: those 4, then 2, then 1 apart.
CENTROID_AVX2 inline float last_sums(__m256 eight) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  four = _mm_add_ss(four, _mm_shuffle_ps(four, four, 1));
  return _mm_cvtss_f32(four);
}

inline bool end_block(float sum, std::byte* scales) {
  if (!is_finite(sum)) return false;
  const std::uint16_t scale = scale_of(sum, kBlock);
  std::memcpy(scales, &scale, sizeof scale);
  return true;
}

}  // namespace

CENTROID_AVX2 bool quantize_avx2(const float* x, std::size_t blocks, std::byte* scales,
                                 std::byte* bits) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256 part = _mm256_set1_ps(kPart);
  for (std::size_t b = 0; b < blocks; ++b, x += kBlock, bits += kBlock / 8, scales += 2) {
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    for (std::size_t i = 0; i < kBlock; i += kParts) {
      std::uint32_t word = 0;
      for (unsigned j = 0; j < 4; ++j) {
        _mm_prefetch(reinterpret_cast<const char*>(x + i + 8 * j + kAhead), _MM_HINT_T0);
        const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
        word |= static_cast<std::uint32_t>(_mm256_movemask_ps(v)) << (8 * j);
        sum[j] = _mm256_add_ps(sum[j], _mm256_mul_ps(_mm256_and_ps(v, magnitude), part));
      }
      std::memcpy(bits + i / 8, &word, sizeof word);
    }
    const __m256 low = _mm256_add_ps(sum[0], sum[2]), high = _mm256_add_ps(sum[1], sum[3]);
    if (!end_block(last_sums(_mm256_add_ps(low, high)), scales)) return false;
  }
  return true;
}

CENTROID_AVX512 bool quantize_avx512(const float* x, std::size_t blocks, std::byte* scales,
                                     std::byte* bits) {
  const __m512 part = _mm512_set1_ps(kPart);
  for (std::size_t b = 0; b < blocks; ++b, x += kBlock, bits += kBlock / 8, scales += 2) {
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
    for (std::size_t i = 0; i < kBlock; i += kParts) {
      _mm_prefetch(reinterpret_cast<const char*>(x + i + kAhead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(x + i + 16 + kAhead), _MM_HINT_T0);
      const __m512 first = _mm512_loadu_ps(x + i), second = _mm512_loadu_ps(x + i + 16);
      const std::uint32_t word =
          static_cast<std::uint32_t>(_mm512_movepi32_mask(_mm512_castps_si512(first))) |
          static_cast<std::uint32_t>(_mm512_movepi32_mask(_mm512_castps_si512(second))) << 16;
      std::memcpy(bits + i / 8, &word, sizeof word);
      low = _mm512_add_ps(low, _mm512_mul_ps(_mm512_abs_ps(first), part));
      high = _mm512_add_ps(high, _mm512_mul_ps(_mm512_abs_ps(second), part));
    }
    const __m512 all = _mm512_add_ps(low, high);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    if (!end_block(last_sums(eight), scales)) return false;
  }
  return true;
}

}  // namespace centroid::sign

#endif
