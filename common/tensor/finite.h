#pragma once

#include <cstdint>
#include <span>

namespace centroid {

/// No number is NaN or infinity.
bool is_finite(std::span<const float> values);
/// Whether all are below 2^32. Where gradients and parameters are, an optimizer's state that was
/// finite stays so.
bool is_moderate(std::span<const float> values);
inline bool is_moderate(float value) { return value > -4294967296.0F && value < 4294967296.0F; }

/// Of the largest number: below 2^32, finite, or not.
enum class Magnitude : std::uint8_t { kModerate, kLarge, kInfinite };
/// One pass, where all are moderate.
Magnitude magnitude_of(std::span<const float> values);

}  // namespace centroid
