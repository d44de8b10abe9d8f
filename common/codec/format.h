#pragma once

#include <bit>
#include <cstdint>

#include "common/tensor/dtype.h"

namespace centroid::format {

/// Storage of one number in 4 or 2 bytes. The functions are constexpr and free of branches: CPU
/// loops over them become vector code, and CUDA kernels call the same ones.

struct F32 {
  using Stored = float;
  static constexpr float shrink(float x) { return x; }
  static constexpr float expand(float x) { return x; }
};

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr std::uint16_t shrink(float x) { return bf16_from_f32(x); }
  static constexpr float expand(std::uint16_t x) { return f32_from_bf16(x); }
};

/// For finite numbers, which stay finite: those that would round to infinity become the largest.
struct FiniteBf16 {
  using Stored = std::uint16_t;
  static constexpr std::uint16_t shrink(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    std::uint32_t stored = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    stored -= (stored & 0x7FFFu) == 0x7F80u ? 1u : 0u;
    return static_cast<std::uint16_t>(stored);
  }
  static constexpr float expand(std::uint16_t x) { return f32_from_bf16(x); }
};

/// As dtype.h converts, but finite numbers stay finite: beyond 65504 they become 65504.
/// source  Giesen 2012, "Float->half variants" (rounding by a float addition for subnormal results)
struct F16 {
  using Stored = std::uint16_t;
  static constexpr std::uint16_t shrink(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const bool is_finite = magnitude < 0x7F800000u;
    const bool is_nan = magnitude > 0x7F800000u;
    const std::uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    magnitude = is_finite && magnitude > 0x477FE000u ? 0x477FE000u : magnitude;  // 65504
    const std::uint32_t normal =
        (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // the last bit is now 2^-24
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
    std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = is_finite ? half : 0x7C00u;
    half = is_nan ? nan : half;
    return static_cast<std::uint16_t>(sign | half);
  }

  static constexpr float expand(std::uint16_t x) {
    const std::uint32_t sign = (x & 0x8000u) << 16;
    const std::uint32_t shifted = (x & 0x7FFFu) << 13;
    const std::uint32_t exponent = shifted & 0x0F800000u;
    const std::uint32_t normal = shifted + (112u << 23);
    const float subnormal = std::bit_cast<float>(shifted + (113u << 23)) - 0x1p-14f;
    const std::uint32_t special =
        (shifted & 0x007FFFFFu) != 0 ? 0x7FC00000u | shifted : 0x7F800000u;
    std::uint32_t bits = exponent == 0 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
    bits = exponent == 0x0F800000u ? special : bits;
    return std::bit_cast<float>(sign | bits);
  }
};

}  // namespace centroid::format
