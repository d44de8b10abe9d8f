#include "worker/model/activation.h"

#include <cmath>
#include <numbers>

namespace centroid::worker {

namespace {

constexpr float kInverseSqrt2 = std::numbers::sqrt2_v<float> / 2.0F;
constexpr float kInverseSqrt2Pi =
    std::numbers::inv_sqrtpi_v<float> * std::numbers::sqrt2_v<float> / 2.0F;

void relu_row(std::size_t width, const float* __restrict bias, float* __restrict z) {
  for (std::size_t j = 0; j < width; ++j) {
    const float x = z[j] + bias[j];
    z[j] = x < 0.0F ? 0.0F : x;
  }
}

void gelu_row(std::size_t width, const float* __restrict bias, float* __restrict z,
              float* __restrict slope) {
  for (std::size_t j = 0; j < width; ++j) {
    const float x = z[j] + bias[j];
    const float phi = 0.5F * (1.0F + std::erf(x * kInverseSqrt2));
    z[j] = x * phi;
    if (slope != nullptr) slope[j] = phi + x * kInverseSqrt2Pi * std::exp(-0.5F * x * x);
  }
}

}  // namespace

std::string_view to_string(Activation activation) {
  return activation == Activation::kRelu ? "relu" : "gelu";
}

void add_bias_activate(Activation activation, std::size_t rows, std::size_t width,
                       const float* bias, float* z, float* slope) {
  for (std::size_t r = 0; r < rows; ++r) {
    if (activation == Activation::kRelu)
      relu_row(width, bias, z + r * width);
    else
      gelu_row(width, bias, z + r * width, slope == nullptr ? nullptr : slope + r * width);
  }
}

void scale_by_slope(Activation activation, std::size_t elements, const float* __restrict output,
                    const float* __restrict slope, float* __restrict gradient) {
  if (activation == Activation::kRelu) {
    for (std::size_t i = 0; i < elements; ++i) gradient[i] = output[i] > 0.0F ? gradient[i] : 0.0F;
  } else {
    for (std::size_t i = 0; i < elements; ++i) gradient[i] *= slope[i];
  }
}

}  // namespace centroid::worker
