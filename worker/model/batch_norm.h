#pragma once

#include <cstddef>

#include "worker/model/activation.h"

namespace centroid::worker {

/// Batch normalisation of the columns of a layer's output, y = (z - mean) / deviation * weight +
/// bias, followed by the activation. `deviation` is the square root of the variance plus
/// kBatchEpsilon.
///
/// Training uses mean and variance of the rows and moves the running values by a tenth towards them
/// (the variance with n - 1). Evaluation uses the running values. A single row has no variance: it
/// is normalised with the running values, which do not change.
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
  float* moments = nullptr;  ///< written by `forward`: means, then 1 / deviation

  /// out = f(y). `out` may be z without a backward pass. f'(y) is written to `slope` (null: not
  /// needed). In training the changes of the running values, old - new, are written to mean_change
  /// and var_change; else these are null.
  void forward(Activation activation, float* mean_change, float* var_change, float* out,
               float* slope) const;
  /// After `forward` in training: d loss / d y in `gradient` becomes d loss / d z.
  void backward(float* gradient, float* weight_gradient, float* bias_gradient) const;
};

}  // namespace centroid::worker
