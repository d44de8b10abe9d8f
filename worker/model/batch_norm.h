#pragma once

#include <cstddef>

#include "worker/model/activation.h"

namespace centroid::worker {

/// Batch normalisation of the columns of a layer's output, y = (z - mean) / spread * weight + bias,
/// and the activation behind it.
///
/// In training mean and spread are those of the rows, and the running values move by a tenth of the
/// way to them, their variance with n - 1; elsewhere they are the running ones. One row alone has
/// no spread: it is normalised with the running values, too, which stay as they are.
///
/// shape   z, out, slope, gradient [rows, width]; the others [width], moments [2, width]
/// source  elements.h
struct BatchNorm {
  std::size_t rows = 0, width = 0;
  const float* z = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* running_mean = nullptr;
  const float* running_var = nullptr;
  float* moments = nullptr;  ///< written by `forward`: means, then 1 / spread

  /// out = f(y), which may be z where there is no way back; f'(y) goes to `slope` (null: not
  /// wanted). The changes of the running values, old - new, are wanted in training (else null).
  void forward(Activation activation, float* mean_change, float* var_change, float* out,
               float* slope) const;
  /// After `forward` in training: d loss / d y in `gradient` becomes d loss / d z.
  void backward(float* gradient, float* weight_gradient, float* bias_gradient) const;
};

}  // namespace centroid::worker
