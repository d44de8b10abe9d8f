// The loops of top-k in AVX2 and AVX-512. Each function is compiled for its instruction set alone,
// and called only if the machine has it.
#include "common/codec/topk_kernels.h"

#if defined(__x86_64__)

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 warns of its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#define CENTROID_AVX2 [[gnu::target("avx2,bmi,popcnt")]]
#define CENTROID_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,bmi,popcnt")]]
#define CENTROID_VBMI2 \
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")]]

namespace centroid::topk {
namespace {

// The last, incomplete group of 64, and how many elements of it were done.
std::size_t finish_add(const float* g, float* e, std::size_t done, std::size_t n,
                       std::uint32_t threshold, std::uint64_t* masks) {
  return done + internal::kPortable.add_and_mark(g + done, e + done, n - done, threshold,
                                                 masks + done / 64);
}
void finish(const float* x, std::size_t done, std::size_t n, std::uint32_t threshold,
            std::uint64_t* masks) {
  if (done < n) internal::kPortable.mark(x + done, n - done, threshold, masks + done / 64);
}

// ---- AVX2 -------------------------------------------------------------------------------------

// 32 bits, one per element, of four compare results.
CENTROID_AVX2 inline std::uint32_t bits_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_packs_epi32(a, b);  // packs work on halves: put the order right after
  const __m256i cd = _mm256_packs_epi32(c, d);
  const __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd),
                                                  _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(all));
}

CENTROID_AVX2 inline __m256i key8(const float* x) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
                          _mm256_set1_epi32(static_cast<int>(kMagnitude)));
}

CENTROID_AVX2 void mark_avx2(const float* x, std::size_t n, std::uint32_t threshold,
                             std::uint64_t* masks) {
  const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::uint64_t mask = 0;
    for (std::size_t half = 0; half < 64; half += 32) {
      const float* p = x + i + half;
      _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + 16), _MM_HINT_T0);
      const __m256i a = _mm256_cmpgt_epi32(key8(p), below);
      const __m256i b = _mm256_cmpgt_epi32(key8(p + 8), below);
      const __m256i c = _mm256_cmpgt_epi32(key8(p + 16), below);
      const __m256i d = _mm256_cmpgt_epi32(key8(p + 24), below);
      mask |= static_cast<std::uint64_t>(bits_of(a, b, c, d)) << half;
    }
    masks[i / 64] = mask;
  }
  finish(x, i, n, threshold, masks);
}

CENTROID_AVX2 std::size_t add_and_mark_avx2(const float* g, float* e, std::size_t n,
                                            std::uint32_t threshold, std::uint64_t* masks) {
  const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
  const __m256i finite = _mm256_set1_epi32(static_cast<int>(kInfinity) - 1);
  const __m256i magnitude = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m256 sum[8];
    __m256i hit[8];
    __m256i bad = _mm256_setzero_si256();
    for (std::size_t j = 0; j < 8; ++j) {
      const std::size_t at = i + 8 * j;
      sum[j] = _mm256_add_ps(_mm256_loadu_ps(e + at), _mm256_loadu_ps(g + at));
      const __m256i key = _mm256_and_si256(_mm256_castps_si256(sum[j]), magnitude);
      bad = _mm256_or_si256(bad, _mm256_cmpgt_epi32(key, finite));
      hit[j] = _mm256_cmpgt_epi32(key, below);
    }
    if (_mm256_testz_si256(bad, bad) == 0) return i;
    for (std::size_t j = 0; j < 8; ++j) _mm256_storeu_ps(e + i + 8 * j, sum[j]);
    masks[i / 64] = bits_of(hit[0], hit[1], hit[2], hit[3]) |
                    static_cast<std::uint64_t>(bits_of(hit[4], hit[5], hit[6], hit[7])) << 32;
  }
  return i < n ? finish_add(g, e, i, n, threshold, masks) : n;
}

CENTROID_AVX2 std::size_t expand_avx2(const std::uint64_t* masks, std::size_t words,
                                      std::uint32_t base, std::uint32_t* out) {
  std::uint32_t* to = out;
  for (std::size_t w = 0; w < words; ++w, base += 64) {
    std::uint64_t mask = masks[w];
    const auto count = static_cast<std::size_t>(_mm_popcnt_u64(mask));
    for (std::size_t j = 0; j < 3; ++j) {
      to[j] = base + static_cast<std::uint32_t>(_tzcnt_u64(mask));
      mask = _blsr_u64(mask);
    }
    for (std::size_t j = 3; j < count; ++j) {
      to[j] = base + static_cast<std::uint32_t>(_tzcnt_u64(mask));
      mask = _blsr_u64(mask);
    }
    to += count;
  }
  return static_cast<std::size_t>(to - out);
}

// ---- AVX-512 ----------------------------------------------------------------------------------

// The four masks are joined by instructions for masks: with integer shifts, g++ 12 took the upper
// bits of a spilled mask for zeros (seen with -O3 -fsanitize=thread).
CENTROID_AVX512 inline std::uint64_t joined(const __mmask16* four) {
  const __mmask32 low = _mm512_kunpackw(four[1], four[0]);
  const __mmask32 high = _mm512_kunpackw(four[3], four[2]);
  return _cvtmask64_u64(_mm512_kunpackd(high, low));
}

CENTROID_AVX512 void mark_avx512(const float* x, std::size_t n, std::uint32_t threshold,
                                 std::uint64_t* masks) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i least = _mm512_set1_epi32(static_cast<int>(threshold));
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __mmask16 hit[4];
    for (std::size_t j = 0; j < 4; ++j) {
      const float* p = x + i + 16 * j;
      _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
      const __m512i key = _mm512_and_si512(_mm512_loadu_si512(p), magnitude);
      hit[j] = _mm512_cmpge_epu32_mask(key, least);
    }
    masks[i / 64] = joined(hit);
  }
  finish(x, i, n, threshold, masks);
}

CENTROID_AVX512 std::size_t add_and_mark_avx512(const float* g, float* e, std::size_t n,
                                                std::uint32_t threshold, std::uint64_t* masks) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i infinity = _mm512_set1_epi32(static_cast<int>(kInfinity));
  const __m512i least = _mm512_set1_epi32(static_cast<int>(threshold));
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512 sum[4];
    __mmask16 hit[4], bad[4];
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t at = i + 16 * j;
      sum[j] = _mm512_add_ps(_mm512_loadu_ps(e + at), _mm512_loadu_ps(g + at));
      const __m512i key = _mm512_and_si512(_mm512_castps_si512(sum[j]), magnitude);
      bad[j] = _mm512_cmpge_epu32_mask(key, infinity);
      hit[j] = _mm512_cmpge_epu32_mask(key, least);
    }
    if (joined(bad) != 0) [[unlikely]]
      return i;
    for (std::size_t j = 0; j < 4; ++j) _mm512_storeu_ps(e + i + 16 * j, sum[j]);
    masks[i / 64] = joined(hit);
  }
  return i < n ? finish_add(g, e, i, n, threshold, masks) : n;
}

CENTROID_VBMI2 inline void put16(std::uint32_t* out, __m512i base, __m128i offsets) {
  _mm512_storeu_si512(out, _mm512_add_epi32(base, _mm512_cvtepu8_epi32(offsets)));
}

// The bytes 0 ... 63 compressed by the mask are the offsets; usually up to 16.
CENTROID_VBMI2 std::size_t expand_vbmi2(const std::uint64_t* masks, std::size_t words,
                                        std::uint32_t base, std::uint32_t* out) {
  alignas(64) static constexpr std::uint8_t kBytes[64] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
      22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
      44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i bytes = _mm512_load_si512(kBytes);
  std::uint32_t* to = out;
  for (std::size_t w = 0; w < words; ++w, base += 64) {
    const std::uint64_t mask = masks[w];
    const __m512i offsets = _mm512_maskz_compress_epi8(mask, bytes);
    const __m512i from = _mm512_set1_epi32(static_cast<int>(base));
    const auto count = static_cast<std::size_t>(_mm_popcnt_u64(mask));
    put16(to, from, _mm512_castsi512_si128(offsets));
    if (count > 16) [[unlikely]] {
      put16(to + 16, from, _mm512_extracti32x4_epi32(offsets, 1));
      put16(to + 32, from, _mm512_extracti32x4_epi32(offsets, 2));
      put16(to + 48, from, _mm512_extracti32x4_epi32(offsets, 3));
    }
    to += count;
  }
  return static_cast<std::size_t>(to - out);
}

}  // namespace

namespace internal {
const Kernels kAvx2{"avx2", mark_avx2, add_and_mark_avx2, expand_avx2};
const Kernels kAvx512{"avx512", mark_avx512, add_and_mark_avx512, expand_avx2};
const Kernels kAvx512Vbmi2{"avx512_vbmi2", mark_avx512, add_and_mark_avx512, expand_vbmi2};
}  // namespace internal

}  // namespace centroid::topk

#endif
