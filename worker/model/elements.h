#pragma once

#include <bit>
#include <cstdint>

#include "common/base/random.h"

namespace centroid::worker {

// Arithmetic of one element, for loops on the CPU and for CUDA kernels. It calls no mathematics
// library, so that loops vectorise and every machine gives the same bits.

// Choices between two numbers use masks: with branches the loops would not vectorise.

/// All ones where `is_true`.
constexpr std::uint32_t mask_of(bool is_true) { return 0U - static_cast<std::uint32_t>(is_true); }
constexpr std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
/// `yes` where the mask is all ones, `no` where it is zero.
constexpr float choose(std::uint32_t mask, float yes, float no) {
  return std::bit_cast<float>((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

/// e^x within 2 units in the last place; below -87.3 it is 0, above 88.7 infinity; NaN gives NaN.
/// source  Cephes `expf` (Moshier 1989): x = n ln 2 + r, a polynomial of degree 6 in r
constexpr float exp_of(float x) {
  constexpr float kLow = -87.3365F, kHigh = 88.7228F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const std::uint32_t is_inside = mask_of(x > kLow), is_above = mask_of(x > kHigh);
  const float bounded = choose(is_above, kHigh, choose(is_inside, x, kLow));
  const float shifted = bounded * 1.44269504088896341F + kRound;
  const float whole = shifted - kRound;
  const std::int32_t n = static_cast<std::int32_t>(bits_of(shifted) - bits_of(kRound));
  const float r = (bounded - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // 2^n in two factors: 2^128 is not a float.
  const std::int32_t half = n >> 1;
  const float first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = std::bit_cast<float>(static_cast<std::uint32_t>(n - half + 127) << 23);
  const std::uint32_t finite = bits_of(p * first * second) & is_inside & ~is_above;
  return std::bit_cast<float>(finite | (0x7F800000U & is_above) | (0x7FC00000U & mask_of(x != x)));
}

/// GELU and its derivative; Phi and phi: distribution and density of the standard normal.
struct Gelu {
  float value;  ///< x Phi(x)
  float slope;  ///< Phi(x) + x phi(x)
};

/// error   |value - x Phi(x)| <= 1e-7 |x| + 1e-7
/// source  Hendrycks, Gimpel 2016 (the exact form, with erf); erfc by Abramowitz, Stegun 7.1.26
constexpr Gelu gelu_of(float x) {
  const std::uint32_t is_negative = mask_of(x < 0.0F);
  const float z = std::bit_cast<float>(bits_of(x) & 0x7FFFFFFFU) * 0.70710678118654752F;
  const float t = 1.0F / (1.0F + 0.3275911F * z);
  const float bell = exp_of(-z * z);
  float p = 1.061405429F;
  p = p * t - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const float tail = 0.5F * p * t * bell;
  const float phi = choose(is_negative, tail, 1.0F - tail);
  return {x * phi, phi + x * (0.39894228040143268F * bell)};
}

/// x sigma(x), sigma the logistic function.
/// source  Elfwing, Uchibe, Doya 2017, "Sigmoid-weighted linear units"
constexpr float silu_of(float x) { return x / (1.0f + exp_of(-x)); }
/// Its derivative; 0 where exp(-x) overflows.
constexpr float silu_slope_of(float x) {
  const float sigma = 1.0f / (1.0f + exp_of(-x));
  return sigma * (1.0f + x * (1.0f - sigma));
}

/// Batch normalisation, with the constants of PyTorch's BatchNorm1d: the number added to a
/// variance, and the fraction of the running values that a batch replaces.
/// source  Ioffe, Szegedy 2015, "Batch normalization", algorithms 1 and 2
constexpr float kBatchEpsilon = 1e-5F, kBatchMomentum = 0.1F;
/// Variance plus epsilon. Sums of changes can make a running variance negative; it counts as 0.
constexpr float batch_square(float variance) {
  return (variance < 0.0F ? 0.0F : variance) + kBatchEpsilon;
}
constexpr float batch_normal(float x, float mean, float inverse) { return (x - mean) * inverse; }
/// old - new of a running value.
constexpr float running_change(float old, float of_batch) {
  return kBatchMomentum * (old - of_batch);
}
/// d loss / d x. `share`: 1 / rows, or 0 if the moments are the running ones; of_weight, of_bias:
/// the gradients of weight and bias.
constexpr float batch_back_of(float dy, float normal, float inverse, float weight, float of_weight,
                              float of_bias, float share) {
  return weight * inverse * (dy - share * (of_bias + normal * of_weight));
}

/// Dropout of four adjacent elements: bit j is set if element 4 * group + j is kept. `threshold` =
/// probability to drop, in 1/65536. The same (key, group) gives the same bits everywhere, so the
/// backward pass recomputes the bits instead of storing them.
constexpr std::uint32_t survivors_of_four(std::uint64_t key, std::uint64_t group,
                                          std::uint32_t threshold) {
  const std::uint64_t bits = mix64(key + 0x9E3779B97F4A7C15ULL * group);
  std::uint32_t kept = 0;
  for (unsigned j = 0; j < 4; ++j)
    kept |= (static_cast<std::uint32_t>(bits >> (16 * j)) & 0xFFFFu) >= threshold ? 1u << j : 0u;
  return kept;
}

}  // namespace centroid::worker
