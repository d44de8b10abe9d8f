#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace centroid::worker {

enum class Activation : std::uint8_t { kRelu, kGelu };

std::string_view to_string(Activation activation);  ///< "relu"

/// z = f(z + bias) in place, row by row. For GELU, f'(z + bias) is written to `slope` for the
/// backward pass.
///
/// shape   z, slope in [rows, width]; bias in [width]; slope may be null (ReLU, or no backward
///         pass)
/// source  GELU: x * Phi(x) with the exact normal distribution (erf), as PyTorch's default;
///         Hendrycks, Gimpel 2016
/// note    NaN stays NaN
void add_bias_activate(Activation activation, std::size_t rows, std::size_t width,
                       const float* bias, float* z, float* slope);

/// gradient *= f'(z), where `output` = f(z) (ReLU reads it; f'(0) = 0) and `slope` = f'(z) (GELU
/// reads it).
void scale_by_slope(Activation activation, std::size_t elements, const float* output,
                    const float* slope, float* gradient);

}  // namespace centroid::worker
