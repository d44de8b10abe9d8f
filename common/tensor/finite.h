#pragma once

#include <span>

namespace centroid {

/// No number is NaN or infinity.
bool is_finite(std::span<const float> values);
/// Whether all are below 2^32. Where gradients and parameters are, an optimizer's state that was
/// finite stays so.
bool is_moderate(std::span<const float> values);

}  // namespace centroid
