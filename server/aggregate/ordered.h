#pragma once

#include <bit>
#include <cstdint>

namespace centroid::server {

/// Integers in the order of floats, -0 below +0; its own inverse.
constexpr std::int32_t ordered(std::int32_t bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }
constexpr std::int32_t ordered_bits(float x) { return ordered(std::bit_cast<std::int32_t>(x)); }
constexpr float from_ordered(std::int32_t x) { return std::bit_cast<float>(ordered(x)); }

}  // namespace centroid::server
