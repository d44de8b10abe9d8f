#pragma once

// One warp per row. With kWide a lane takes four neighbours at a time: rows are multiples of four
// numbers then, and stand on 16-byte boundaries.

#include "common/device/cuda/grid.cuh"
#include "worker/model/cuda/kernels.h"
#include "worker/model/elements.h"

namespace centroid::worker::cuda {

using centroid::cuda::kAllLanes;
using centroid::cuda::kLanes;
using centroid::cuda::kPer;
using centroid::cuda::kThreads;
using centroid::cuda::kWarps;
using centroid::cuda::load;
using centroid::cuda::store;
using centroid::cuda::thread_count;
using centroid::cuda::thread_number;
using centroid::cuda::warp_max;
using centroid::cuda::warp_sum;

constexpr float kEpsilon = 1e-5f;  // worker/model/kernels.cc
constexpr std::uint32_t kNotJudged = 0xFFFFFFFFu;
/// Rows whose columns one block adds up on the way back of a normalisation.
constexpr std::uint64_t kColumnRows = 128;

__device__ __forceinline__ std::uint64_t first_row() {
  return std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
}
__device__ __forceinline__ std::uint64_t row_step() { return std::uint64_t{gridDim.x} * kWarps; }
template <bool kWide>
__device__ __forceinline__ std::uint64_t first_column() {
  return std::uint64_t{kPer<kWide>} * (threadIdx.x % kLanes);
}
template <bool kWide>
constexpr std::uint64_t kColumnStep = std::uint64_t{kPer<kWide>} * kLanes;

template <bool kWide, bool kBack>
__global__ void __launch_bounds__(kThreads)
    gelu_kernel(std::uint64_t n, const float* in, float* out) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t g = thread_number(); g < n / kMany; g += thread_count()) {
    float x[kMany], y[kMany];
    load<kWide>(in + g * kMany, x);
    if constexpr (kBack) load<kWide>(out + g * kMany, y);
    for (unsigned j = 0; j < kMany; ++j)
      y[j] = kBack ? y[j] * gelu_of(x[j]).slope : gelu_of(x[j]).value;
    store<kWide>(out + g * kMany, y);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(std::uint64_t rows, std::uint64_t width, const float* gate_up, float* out) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t r = first_row(); r < rows; r += row_step())
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float gate[kMany], up[kMany];
      load<kWide>(gate_up + 2 * r * width + j, gate);
      load<kWide>(gate_up + (2 * r + 1) * width + j, up);
      for (unsigned i = 0; i < kMany; ++i) up[i] = silu_of(gate[i]) * up[i];
      store<kWide>(out + r * width + j, up);
    }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    swiglu_back_kernel(std::uint64_t rows, std::uint64_t width, const float* gradient,
                       float* gate_up) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t r = first_row(); r < rows; r += row_step())
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float gate[kMany], up[kMany], g[kMany];
      load<kWide>(gate_up + 2 * r * width + j, gate);
      load<kWide>(gate_up + (2 * r + 1) * width + j, up);
      load<kWide>(gradient + r * width + j, g);
      for (unsigned i = 0; i < kMany; ++i) {
        const float of_up = g[i] * silu_of(gate[i]);
        gate[i] = g[i] * up[i] * silu_slope_of(gate[i]);
        up[i] = of_up;
      }
      store<kWide>(gate_up + 2 * r * width + j, gate);
      store<kWide>(gate_up + (2 * r + 1) * width + j, up);
    }
}

template <bool kAdd>
__global__ void __launch_bounds__(kThreads)
    drop_kernel(std::uint32_t threshold, float scale, const std::uint64_t* keys,
                std::uint64_t context, std::uint64_t site, std::uint64_t rows, std::uint64_t width,
                const float* in, float* out) {
  const std::uint64_t groups = (width + 3) / 4;
  for (std::uint64_t g = thread_number(); g < rows * groups; g += thread_count()) {
    const std::uint64_t row = g / groups, group = g % groups;
    const std::uint64_t key = mix64(keys[row / context], site);
    const std::uint32_t kept = kept_of_four(key, (row % context) * groups + group, threshold);
    for (std::uint64_t j = 0; j < 4 && 4 * group + j < width; ++j) {
      const std::uint64_t at = row * width + 4 * group + j;
      const float value = ((kept >> j) & 1u) != 0 ? in[at] * scale : 0.0f;
      out[at] = kAdd ? out[at] + value : value;
    }
  }
}

template <bool kLayer, bool kWide>
__global__ void __launch_bounds__(kThreads)
    add_norm_kernel(const float* weight, const float* bias, std::uint64_t rows, std::uint64_t width,
                    const float* residual, const float* branch, float* x, float* y, float* stats) {
  constexpr unsigned kMany = kPer<kWide>;
  const auto n = static_cast<float>(width);
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    const std::uint64_t row = r * width;
    float sum = 0, squares = 0;
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float v[kMany], more[kMany];
      load<kWide>(residual + row + j, v);
      if (branch != nullptr) {
        load<kWide>(branch + row + j, more);
        for (unsigned i = 0; i < kMany; ++i) v[i] += more[i];
      }
      store<kWide>(x + row + j, v);
      for (unsigned i = 0; i < kMany; ++i) {
        sum += v[i];
        squares += v[i] * v[i];
      }
    }
    float mean = 0;
    if constexpr (kLayer) {
      mean = warp_sum(sum) / n;
      squares = 0;  // about the mean: the difference of two large sums would lose what counts
      for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
        float v[kMany];
        load<kWide>(x + row + j, v);  // what this lane stored
        for (unsigned i = 0; i < kMany; ++i) squares += (v[i] - mean) * (v[i] - mean);
      }
    }
    const float inverse = 1.0f / std::sqrt(warp_sum(squares) / n + kEpsilon);
    if (threadIdx.x % kLanes == 0) {
      stats[2 * r] = mean;
      stats[2 * r + 1] = inverse;
    }
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float v[kMany], w[kMany], b[kMany] = {};
      load<kWide>(x + row + j, v);
      load<kWide>(weight + j, w);
      if constexpr (kLayer) load<kWide>(bias + j, b);
      for (unsigned i = 0; i < kMany; ++i) v[i] = (v[i] - mean) * inverse * w[i] + b[i];
      store<kWide>(y + row + j, v);
    }
  }
}

template <bool kLayer, bool kWide>
__global__ void __launch_bounds__(kThreads)
    norm_back_kernel(const float* weight, std::uint64_t rows, std::uint64_t width, const float* x,
                     const float* stats, const float* dy, float* gradient) {
  constexpr unsigned kMany = kPer<kWide>;
  const auto n = static_cast<float>(width);
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    const std::uint64_t row = r * width;
    const float mean = stats[2 * r], inverse = stats[2 * r + 1];
    float sum = 0, dot = 0;
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float v[kMany], w[kMany], d[kMany];
      load<kWide>(x + row + j, v);
      load<kWide>(weight + j, w);
      load<kWide>(dy + row + j, d);
      for (unsigned i = 0; i < kMany; ++i) {
        sum += d[i] * w[i];
        dot += d[i] * w[i] * ((v[i] - mean) * inverse);
      }
    }
    const float mean_g = kLayer ? warp_sum(sum) / n : 0.0f;
    const float mean_dot = warp_sum(dot) / n;
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float v[kMany], w[kMany], d[kMany], g[kMany];
      load<kWide>(x + row + j, v);
      load<kWide>(weight + j, w);
      load<kWide>(dy + row + j, d);
      load<kWide>(gradient + row + j, g);
      for (unsigned i = 0; i < kMany; ++i)
        g[i] += inverse * (d[i] * w[i] - mean_g - (v[i] - mean) * inverse * mean_dot);
      store<kWide>(gradient + row + j, g);
    }
  }
}

/// partial[c] = sums over rows [c * kColumnRows, ...) of dy * x̂, then of dy; a thread per column.
__global__ void __launch_bounds__(kThreads)
    norm_columns_kernel(std::uint64_t rows, std::uint64_t width, const float* x, const float* stats,
                        const float* dy, float* partial) {
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows;
  for (std::uint64_t t = thread_number(); t < parts * width; t += thread_count()) {
    const std::uint64_t part = t / width, column = t % width;
    const std::uint64_t end = (part + 1) * kColumnRows < rows ? (part + 1) * kColumnRows : rows;
    float of_weight = 0, of_bias = 0;
    for (std::uint64_t r = part * kColumnRows; r < end; ++r) {
      const float d = dy[r * width + column];
      of_weight += d * ((x[r * width + column] - stats[2 * r]) * stats[2 * r + 1]);
      of_bias += d;
    }
    partial[2 * part * width + column] = of_weight;
    partial[(2 * part + 1) * width + column] = of_bias;
  }
}
__global__ void __launch_bounds__(kThreads)
    norm_sums_kernel(std::uint64_t parts, std::uint64_t width, const float* partial,
                     float* weight_gradient, float* bias_gradient) {
  for (std::uint64_t column = thread_number(); column < width; column += thread_count()) {
    float of_weight = 0, of_bias = 0;
    for (std::uint64_t part = 0; part < parts; ++part) {
      of_weight += partial[2 * part * width + column];
      of_bias += partial[(2 * part + 1) * width + column];
    }
    if (weight_gradient != nullptr) weight_gradient[column] = of_weight;
    if (bias_gradient != nullptr) bias_gradient[column] = of_bias;
  }
}

/// A lane begins with the row's first number, so that a NaN anywhere in the row reaches the sum.
__device__ __forceinline__ float row_max(const float* row, std::uint64_t count, unsigned lane) {
  float top = row[0];
  for (std::uint64_t j = lane; j < count; j += kLanes) top = row[j] > top ? row[j] : top;
  return warp_max(top);
}

__device__ __forceinline__ std::uint64_t number_of(const RowNumbers& at, std::uint64_t matrix,
                                                   std::uint64_t row) {
  return matrix / at.heads * at.of_sample + matrix % at.heads + row * at.of_row;
}

__global__ void __launch_bounds__(kThreads)
    causal_softmax_kernel(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                          std::uint64_t width, float scale, float* scores, float* lse,
                          RowNumbers at) {
  const unsigned lane = threadIdx.x % kLanes;
  for (std::uint64_t r = first_row(); r < count * rows; r += row_step()) {
    float* row = scores + r * width;
    const std::uint64_t seen = begin + r % rows + 1;
    const float top = row_max(row, seen, lane) * scale;
    float sum = 0;
    for (std::uint64_t j = lane; j < seen; j += kLanes) {
      row[j] = exp_of(row[j] * scale - top);
      sum += row[j];
    }
    sum = warp_sum(sum);
    for (std::uint64_t j = lane; j < width; j += kLanes)
      row[j] = j < seen ? row[j] * (1.0f / sum) : 0.0f;
    if (lane == 0) lse[number_of(at, r / rows, r % rows)] = top + std::log(sum);
  }
}

__global__ void __launch_bounds__(kThreads)
    causal_softmax_back_kernel(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                               std::uint64_t width, float scale, const float* lse,
                               const float* delta, RowNumbers numbers, float* scores,
                               float* dscores) {
  const unsigned lane = threadIdx.x % kLanes;
  for (std::uint64_t r = first_row(); r < count * rows; r += row_step()) {
    const std::uint64_t number = number_of(numbers, r / rows, r % rows);
    for (std::uint64_t j = lane; j < width; j += kLanes) {
      const std::uint64_t at = r * width + j;
      const bool is_seen = j <= begin + r % rows;
      const float p = is_seen ? exp_of(scores[at] * scale - lse[number]) : 0.0f;
      scores[at] = p;
      dscores[at] = is_seen ? p * (dscores[at] - delta[number]) * scale : 0.0f;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                         const float* bias, float share, bool want_gradient, float* logits,
                         float* losses, std::uint32_t* correct) {
  const unsigned lane = threadIdx.x % kLanes;
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    float* row = logits + r * classes;
    const auto logit = [row, bias](std::uint64_t j) {
      return bias == nullptr ? row[j] : row[j] + bias[j];
    };
    const std::uint32_t label = labels[r];
    if (label == kNotJudged) {
      for (std::uint64_t j = lane; j < classes; j += kLanes) row[j] = 0.0f;
      if (lane == 0) {
        losses[r] = 0;
        correct[r] = 0;
      }
      continue;
    }
    float top = logit(0);  // so that a NaN anywhere in the row reaches the sum
    for (std::uint64_t j = lane; j < classes; j += kLanes) top = logit(j) > top ? logit(j) : top;
    top = warp_max(top);
    const float of_label = logit(label) - top;
    bool is_before = false;  // another largest one stands before the label's
    float sum = 0;
    for (std::uint64_t j = lane; j < classes; j += kLanes) {
      is_before = is_before || (j < label && logit(j) == top);
      sum += exp_of(logit(j) - top);
    }
    sum = warp_sum(sum);
    const bool is_later = __ballot_sync(kAllLanes, is_before) != 0;
    __syncwarp();  // all have read `row`: a vote alone orders no memory
    if (lane == 0) {
      losses[r] = std::log(sum) - of_label;
      correct[r] = of_label == 0.0f && !is_later && sum == sum ? 1 : 0;
    }
    if (!want_gradient) continue;
    const float factor = share / sum;
    for (std::uint64_t j = lane; j < classes; j += kLanes)
      row[j] = exp_of(logit(j) - top) * factor - (j == label ? share : 0.0f);
  }
}

}  // namespace centroid::worker::cuda
