#pragma once

// Batch normalisation: sums of columns in parts of kColumnRows rows, then the elementwise kernels.

#include <cmath>

#include "worker/model/cuda/kernels.cuh"

namespace centroid::worker::cuda {

/// partial[c] = means of the columns over rows [c * kColumnRows, ...), then sums of the squared
/// differences from them. One thread per load; its second pass over the rows reads from a cache.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    batch_columns_kernel(std::uint64_t rows, std::uint64_t width, const float* z, float* partial) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows, groups = width / kMany;
  for (std::uint64_t t = thread_number(); t < parts * groups; t += thread_count()) {
    const std::uint64_t part = t / groups, column = t % groups * kMany, begin = part * kColumnRows;
    const std::uint64_t end = begin + kColumnRows < rows ? begin + kColumnRows : rows;
    float mean[kMany] = {}, squares[kMany] = {}, x[kMany];
    for (std::uint64_t r = begin; r < end; ++r) {
      load<kWide>(z + r * width + column, x);
      for (unsigned i = 0; i < kMany; ++i) mean[i] += x[i];
    }
    for (unsigned i = 0; i < kMany; ++i) mean[i] /= static_cast<float>(end - begin);
    for (std::uint64_t r = begin; r < end; ++r) {
      load<kWide>(z + r * width + column, x);
      for (unsigned i = 0; i < kMany; ++i) squares[i] += (x[i] - mean[i]) * (x[i] - mean[i]);
    }
    store<kWide>(partial + 2 * part * width + column, mean);
    store<kWide>(partial + (2 * part + 1) * width + column, squares);
  }
}

/// Moments of the whole columns, and the changes of the running values; without parts: the running
/// moments, which do not change.
/// source  Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
///         sample variances"
__global__ void __launch_bounds__(kThreads)
    batch_moments_kernel(BatchNorm norm, std::uint64_t parts, const float* partial,
                         float* mean_change, float* var_change) {
  const std::uint64_t width = norm.width, rows = norm.rows;
  for (std::uint64_t column = thread_number(); column < width; column += thread_count()) {
    float mean = 0, squares = 0;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const std::uint64_t begin = part * kColumnRows;
      const std::uint64_t end = begin + kColumnRows < rows ? begin + kColumnRows : rows;
      const float apart = partial[2 * part * width + column] - mean;
      const float share = static_cast<float>(end - begin) / static_cast<float>(end);
      mean += apart * share;
      squares += partial[(2 * part + 1) * width + column] +
                 apart * apart * share * static_cast<float>(begin);
    }
    const bool is_of_rows = parts > 0;
    const float old_mean = norm.running_mean[column], old_var = norm.running_var[column];
    const float spread = is_of_rows ? squares / static_cast<float>(rows) : old_var;
    norm.moments[column] = is_of_rows ? mean : old_mean;
    norm.moments[width + column] = 1.0f / std::sqrt(batch_square(spread));
    if (mean_change == nullptr) continue;
    const float variance = is_of_rows ? squares / static_cast<float>(rows - 1) : 0.0f;
    mean_change[column] = is_of_rows ? running_change(old_mean, mean) : 0.0f;
    var_change[column] = is_of_rows ? running_change(old_var, variance) : 0.0f;
  }
}

template <bool kGelu, bool kWide>
__global__ void __launch_bounds__(kThreads)
    batch_norm_kernel(BatchNorm norm, float* out, float* slope) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t width = norm.width;
  for (std::uint64_t r = first_row(); r < norm.rows; r += row_step())
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float x[kMany], mean[kMany], inverse[kMany], w[kMany], b[kMany], s[kMany];
      load<kWide>(norm.z + r * width + j, x);
      load<kWide>(norm.moments + j, mean);
      load<kWide>(norm.moments + width + j, inverse);
      load<kWide>(norm.weight + j, w);
      load<kWide>(norm.bias + j, b);
      for (unsigned i = 0; i < kMany; ++i) {
        const float at = batch_normal(x[i], mean[i], inverse[i]) * w[i] + b[i];
        activate<kGelu>(at, x[i], s[i]);
      }
      store<kWide>(out + r * width + j, x);
      if constexpr (kGelu)
        if (slope != nullptr) store<kWide>(slope + r * width + j, s);
    }
}

/// partial[c] = sums over rows [c * kColumnRows, ...) of dy * normal, then of dy: norm_sums_kernel
/// adds them.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    batch_back_columns_kernel(BatchNorm norm, const float* gradient, float* partial) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t width = norm.width, rows = norm.rows, groups = width / kMany;
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  for (std::uint64_t t = thread_number(); t < parts * groups; t += thread_count()) {
    const std::uint64_t part = t / groups, column = t % groups * kMany;
    const std::uint64_t end = (part + 1) * kColumnRows < rows ? (part + 1) * kColumnRows : rows;
    float of_weight[kMany] = {}, of_bias[kMany] = {}, mean[kMany], inverse[kMany];
    load<kWide>(norm.moments + column, mean);
    load<kWide>(norm.moments + width + column, inverse);
    for (std::uint64_t r = part * kColumnRows; r < end; ++r) {
      float x[kMany], d[kMany];
      load<kWide>(norm.z + r * width + column, x);
      load<kWide>(gradient + r * width + column, d);
      for (unsigned i = 0; i < kMany; ++i) {
        of_weight[i] += d[i] * batch_normal(x[i], mean[i], inverse[i]);
        of_bias[i] += d[i];
      }
    }
    store<kWide>(partial + 2 * part * width + column, of_weight);
    store<kWide>(partial + (2 * part + 1) * width + column, of_bias);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    batch_back_kernel(BatchNorm norm, const float* weight_gradient, const float* bias_gradient,
                      float* gradient) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t width = norm.width;
  const float share = norm.rows > 1 ? 1.0f / static_cast<float>(norm.rows) : 0.0f;
  for (std::uint64_t r = first_row(); r < norm.rows; r += row_step())
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float x[kMany], d[kMany], mean[kMany], inverse[kMany], w[kMany], dw[kMany], db[kMany];
      load<kWide>(norm.z + r * width + j, x);
      load<kWide>(gradient + r * width + j, d);
      load<kWide>(norm.moments + j, mean);
      load<kWide>(norm.moments + width + j, inverse);
      load<kWide>(norm.weight + j, w);
      load<kWide>(weight_gradient + j, dw);
      load<kWide>(bias_gradient + j, db);
      for (unsigned i = 0; i < kMany; ++i)
        d[i] = batch_back_of(d[i], batch_normal(x[i], mean[i], inverse[i]), inverse[i], w[i], dw[i],
                             db[i], share);
      store<kWide>(gradient + r * width + j, d);
    }
}

}  // namespace centroid::worker::cuda
