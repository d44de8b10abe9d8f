#pragma once

#include <bit>
#include <cstdint>

#include "common/base/random.h"

namespace centroid::worker {

// Arithmetic of one element, for the loops on the CPU and for CUDA kernels: no call of a
// mathematics library, so that loops become vector code and every machine gives the same bits.

/// e^x within 2 units in the last place; below -87.3 it is 0, above 88.7 infinity; NaN stays.
/// source  Cephes `expf` (Moshier 1989): x = n ln 2 + r, a polynomial of degree 6 in r
constexpr float exp_of(float x) {
  constexpr float kLow = -87.3365f, kHigh = 88.7228f;
  const float bounded = x > kLow ? (x < kHigh ? x : kHigh) : kLow;  // NaN: kLow, put right below
  const float scaled = bounded * 1.44269504088896341f;
  const int n = static_cast<int>(scaled + (scaled < 0.0f ? -0.5f : 0.5f));
  const float whole = static_cast<float>(n);
  const float r = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n = 128 has no float of its own.
  const int half = n >> 1;
  const float first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<std::uint32_t>(n - half + 127) << 23);
  const float finite = p * first * second;
  const float upper = x < kHigh ? finite : std::bit_cast<float>(0x7F800000u);
  const float value = x > kLow ? upper : 0.0f;
  return x == x ? value : x;
}

/// Standard normal distribution function and what the way back of x * Phi(x) needs.
struct Gelu {
  float value;  ///< x Phi(x)
  float slope;  ///< Phi(x) + x phi(x)
};

/// error   |value - x Phi(x)| <= 1e-7 |x| + 1e-7
/// source  Hendrycks, Gimpel 2016 (the exact form, with erf); erfc by Abramowitz, Stegun 7.1.26
constexpr Gelu gelu_of(float x) {
  const float z = (x < 0.0f ? -x : x) * 0.70710678118654752f;
  const float t = 1.0f / (1.0f + 0.3275911f * z);
  const float bell = exp_of(-z * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = 0.5f * p * t * bell;
  const float phi = x < 0.0f ? tail : 1.0f - tail;
  return {x * phi, phi + x * (0.39894228040143268f * bell)};
}

/// x sigma(x), sigma the logistic function.
/// source  Elfwing, Uchibe, Doya 2017, "Sigmoid-weighted linear units"
constexpr float silu_of(float x) { return x / (1.0f + exp_of(-x)); }
/// Its derivative. x of an infinite exponential: the logistic function is 0, and so is the slope.
constexpr float silu_slope_of(float x) {
  const float sigma = 1.0f / (1.0f + exp_of(-x));
  return sigma * (1.0f + x * (1.0f - sigma));
}

/// Dropout of four neighbours at a time: bit j says that element 4 * group + j stays.
/// `threshold` = probability to drop, in 1/65536. The same (key, group) gives the same bits
/// everywhere, so the way back draws again instead of storing.
constexpr std::uint32_t kept_of_four(std::uint64_t key, std::uint64_t group,
                                     std::uint32_t threshold) {
  const std::uint64_t bits = mix64(key + 0x9E3779B97F4A7C15ULL * group);
  std::uint32_t kept = 0;
  for (unsigned j = 0; j < 4; ++j)
    kept |= (static_cast<std::uint32_t>(bits >> (16 * j)) & 0xFFFFu) >= threshold ? 1u << j : 0u;
  return kept;
}

}  // namespace centroid::worker
