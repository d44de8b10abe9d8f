#pragma once

#include <span>

namespace centroid {

/// No number is NaN or infinity.
bool is_finite(std::span<const float> values);

}  // namespace centroid
