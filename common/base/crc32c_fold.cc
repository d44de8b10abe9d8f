#include "common/base/crc32c_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace centroid {

#if defined(__x86_64__)

namespace {

#define CENTROID_FOLD_TARGET \
  __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1,sse4.2")))

/// x^exponent modulo the polynomial, bits reversed.
constexpr long long power(unsigned exponent) {
  constexpr std::uint64_t kPolynomial = 0x11EDC6F41;
  std::uint64_t remainder = 1;
  for (unsigned i = 0; i < exponent; ++i) {
    remainder <<= 1;
    if ((remainder >> 32) != 0) remainder ^= kPolynomial;
  }
  long long reversed = 0;
  for (int bit = 0; bit < 32; ++bit)
    if (((remainder >> bit) & 1) != 0) reversed |= 1LL << (31 - bit);
  return reversed;
}

/// Factors that move the low and the high half of 16 bytes to where the 16 bytes `distance` bytes
/// later are.
constexpr long long low_factor(unsigned distance) { return power(8 * distance + 31); }
constexpr long long high_factor(unsigned distance) { return power(8 * distance - 33); }

CENTROID_FOLD_TARGET inline __m512i load(const std::byte* at) { return _mm512_loadu_si512(at); }

/// `from`, moved by the factors, plus `onto`.
CENTROID_FOLD_TARGET inline __m512i fold(__m512i from, __m512i factors, __m512i onto) {
  const __m512i low = _mm512_clmulepi64_epi128(from, factors, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(from, factors, 0x11);
  return _mm512_ternarylogic_epi64(low, high, onto, 0x96);
}

}  // namespace

bool can_fold_crc32c() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
         __builtin_cpu_supports("sse4.2") != 0;
}

CENTROID_FOLD_TARGET std::uint32_t fold_crc32c(std::uint32_t crc, const std::byte* at,
                                               std::size_t n) {
  constexpr long long kLow256 = low_factor(256), kHigh256 = high_factor(256);
  constexpr long long kLow64 = low_factor(64), kHigh64 = high_factor(64);
  constexpr long long kLow48 = low_factor(48), kHigh48 = high_factor(48);
  constexpr long long kLow32 = low_factor(32), kHigh32 = high_factor(32);
  constexpr long long kLow16 = low_factor(16), kHigh16 = high_factor(16);

  __m512i x0 = load(at), x1 = load(at + 64), x2 = load(at + 128), x3 = load(at + 192);
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(crc));
  x0 = _mm512_xor_si512(x0, _mm512_zextsi128_si512(start));
  const __m512i by256 =
      _mm512_set_epi64(kHigh256, kLow256, kHigh256, kLow256, kHigh256, kLow256, kHigh256, kLow256);
  for (n -= kCrcFoldBytes, at += kCrcFoldBytes; n >= kCrcFoldBytes;
       n -= kCrcFoldBytes, at += kCrcFoldBytes) {
    x0 = fold(x0, by256, load(at));
    x1 = fold(x1, by256, load(at + 64));
    x2 = fold(x2, by256, load(at + 128));
    x3 = fold(x3, by256, load(at + 192));
  }
  const __m512i by64 =
      _mm512_set_epi64(kHigh64, kLow64, kHigh64, kLow64, kHigh64, kLow64, kHigh64, kLow64);
  x1 = fold(x0, by64, x1);
  x2 = fold(x1, by64, x2);
  x3 = fold(x2, by64, x3);
  // The four 16-byte lanes onto the last one, which stays.
  const __m512i lanes = _mm512_set_epi64(0, 0, kHigh16, kLow16, kHigh32, kLow32, kHigh48, kLow48);
  const __m512i moved = fold(x3, lanes, _mm512_setzero_si512());
  alignas(64) std::uint64_t folded[8];
  alignas(64) std::uint64_t parts[8];
  _mm512_store_si512(folded, x3);
  _mm512_store_si512(parts, moved);
  const std::uint64_t low = folded[6] ^ parts[0] ^ parts[2] ^ parts[4];
  const std::uint64_t high = folded[7] ^ parts[1] ^ parts[3] ^ parts[5];
  return static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, low), high));
}

#else

bool can_fold_crc32c() { return false; }
std::uint32_t fold_crc32c(std::uint32_t crc, const std::byte*, std::size_t) { return crc; }

#endif

}  // namespace centroid
