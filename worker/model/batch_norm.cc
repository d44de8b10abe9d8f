#include "worker/model/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "worker/model/elements.h"

namespace centroid::worker {

namespace {

float inverse_of(float variance) { return 1.0F / std::sqrt(batch_square(variance)); }

/// means = mean of each column; squares = sum of the squared differences from it. Rows are added in
/// order.
void moments_of(std::size_t rows, std::size_t width, const float* __restrict z,
                float* __restrict means, float* __restrict squares) {
  std::fill_n(means, width, 0.0F);
  std::fill_n(squares, width, 0.0F);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j) means[j] += z[r * width + j];
  for (std::size_t j = 0; j < width; ++j) means[j] /= static_cast<float>(rows);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j) {
      const float apart = z[r * width + j] - means[j];
      squares[j] += apart * apart;
    }
}

}  // namespace

void BatchNorm::forward(Activation activation, float* mean_change, float* var_change, float* out,
                        float* slope) const {
  float *const means = moments, *const inverses = moments + width;
  if (mean_change != nullptr && rows > 1) {
    moments_of(rows, width, z, means, inverses);
    for (std::size_t j = 0; j < width; ++j) {
      const float squares = inverses[j];
      mean_change[j] = running_change(running_mean[j], means[j]);
      var_change[j] = running_change(running_var[j], squares / static_cast<float>(rows - 1));
      inverses[j] = inverse_of(squares / static_cast<float>(rows));
    }
  } else {
    for (std::size_t j = 0; j < width; ++j) {
      means[j] = running_mean[j];
      inverses[j] = inverse_of(running_var[j]);
    }
    if (mean_change != nullptr) std::fill_n(mean_change, width, 0.0F);
    if (var_change != nullptr) std::fill_n(var_change, width, 0.0F);
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j)
      out[r * width + j] = batch_normal(z[r * width + j], means[j], inverses[j]) * weight[j];
  add_bias_activate(activation, rows, width, bias, out, slope);
}

void BatchNorm::backward(float* __restrict gradient, float* __restrict weight_gradient,
                         float* __restrict bias_gradient) const {
  const float *const means = moments, *const inverses = moments + width;
  const auto normal = [&](std::size_t r, std::size_t j) {
    return batch_normal(z[r * width + j], means[j], inverses[j]);
  };
  std::fill_n(weight_gradient, width, 0.0F);
  std::fill_n(bias_gradient, width, 0.0F);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j) {
      weight_gradient[j] += gradient[r * width + j] * normal(r, j);
      bias_gradient[j] += gradient[r * width + j];
    }
  const float share = rows > 1 ? 1.0F / static_cast<float>(rows) : 0.0F;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j)
      gradient[r * width + j] =
          batch_back_of(gradient[r * width + j], normal(r, j), inverses[j], weight[j],
                        weight_gradient[j], bias_gradient[j], share);
}

}  // namespace centroid::worker
