#pragma once

// One warp per row. With kWide a lane loads four adjacent numbers at a time: rows are then
// multiples of four numbers and aligned to 16 bytes.

#include <cfloat>

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
/// Rows that one block sums per column in the backward pass of a normalisation.
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

/// For rows of at most kCachedColumns columns (kHeld) a lane keeps its 32 numbers in registers
/// between two passes instead of reading them again.
constexpr std::uint64_t kCachedColumns = 1024;
template <bool kWide, bool kHeld>
constexpr unsigned kSteps = kHeld ? static_cast<unsigned>(kCachedColumns / kColumnStep<kWide>) : 1;

/// GELU and its slope for the backward pass, or ReLU, whose slope follows from its output (NaN
/// gives NaN).
template <bool kGelu>
__device__ __forceinline__ void activate(float at, float& value, float& slope) {
  if constexpr (kGelu) {
    const Gelu gelu = gelu_of(at);
    value = gelu.value;
    slope = gelu.slope;
  } else {
    value = at < 0.0f ? 0.0f : at;
  }
}

/// each(column, step) for this lane's columns below `width`; step indexes the registers and is a
/// compile-time constant.
template <bool kWide, bool kHeld, class Each>
__device__ __forceinline__ void for_columns(std::uint64_t width, const Each& each) {
  if constexpr (kHeld) {
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (unsigned step = 0; step < kSteps<kWide, true>; ++step) {
      const std::uint64_t j = first_column<kWide>() + step * kColumnStep<kWide>;
      if (j < width) each(j, step);
    }
  } else {
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) each(j, 0u);
  }
}

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

/// One thread for four adjacent numbers, because dropout draws four at a time.
template <bool kAdd, bool kWide>
__global__ void __launch_bounds__(kThreads)
    drop_kernel(std::uint32_t threshold, float scale, const std::uint64_t* keys,
                std::uint64_t context, std::uint64_t site, std::uint64_t rows, std::uint64_t width,
                const float* in, float* out) {
  const std::uint64_t groups = (width + 3) / 4;
  for (std::uint64_t g = thread_number(); g < rows * groups; g += thread_count()) {
    const std::uint64_t row = g / groups, group = g % groups;
    const std::uint64_t key = mix64(keys[row / context], site);
    const std::uint32_t kept = survivors_of_four(key, (row % context) * groups + group, threshold);
    for (std::uint64_t j = 0; j < 4 && 4 * group + j < width; j += kPer<kWide>) {
      const std::uint64_t at = row * width + 4 * group + j;
      float x[kPer<kWide>], y[kPer<kWide>] = {};
      load<kWide>(in + at, x);
      if constexpr (kAdd) load<kWide>(out + at, y);
      for (unsigned i = 0; i < kPer<kWide>; ++i) {
        const float value = ((kept >> (j + i)) & 1u) != 0 ? x[i] * scale : 0.0f;
        y[i] = kAdd ? y[i] + value : value;
      }
      store<kWide>(out + at, y);
    }
  }
}

template <bool kLayer, bool kWide, bool kHeld>
__global__ void __launch_bounds__(kThreads)
    add_norm_kernel(const float* weight, const float* bias, Dropout dropout, std::uint64_t rows,
                    std::uint64_t width, const float* residual, const float* branch, float* x,
                    float* y, float* stats) {
  constexpr unsigned kMany = kPer<kWide>;
  const auto n = static_cast<float>(width);
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    const std::uint64_t row = r * width;
    const bool drops = branch != nullptr && dropout.threshold > 0;
    const std::uint64_t key = drops ? mix64(dropout.keys[r / dropout.context], dropout.site) : 0;
    const std::uint64_t first = drops ? (r % dropout.context) * ((width + 3) / 4) : 0;
    float sum = 0, squares = 0;
    float held[kSteps<kWide, kHeld>][kMany] = {};
    for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
      float(&v)[kMany] = held[step];
      float more[kMany];
      load<kWide>(residual + row + j, v);
      if (branch != nullptr) {
        load<kWide>(branch + row + j, more);
        if (drops) {
          const std::uint32_t kept =
              survivors_of_four(key, first + j / 4, dropout.threshold) >> (j % 4);
          for (unsigned i = 0; i < kMany; ++i)
            more[i] = ((kept >> i) & 1u) != 0 ? more[i] * dropout.scale : 0.0f;
        }
        for (unsigned i = 0; i < kMany; ++i) v[i] += more[i];
      }
      store<kWide>(x + row + j, v);
      for (unsigned i = 0; i < kMany; ++i) {
        sum += v[i];
        squares += v[i] * v[i];
      }
    });
    float mean = 0;
    if constexpr (kLayer) {
      mean = warp_sum(sum) / n;
      squares = 0;  // about the mean: the difference of two large sums would cancel
      for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
        float(&v)[kMany] = held[step];
        if constexpr (!kHeld) load<kWide>(x + row + j, v);  // this lane stored it
        for (unsigned i = 0; i < kMany; ++i) squares += (v[i] - mean) * (v[i] - mean);
      });
    }
    const float inverse = 1.0f / std::sqrt(warp_sum(squares) / n + kEpsilon);
    if (threadIdx.x % kLanes == 0) {
      stats[2 * r] = mean;
      stats[2 * r + 1] = inverse;
    }
    for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
      float(&v)[kMany] = held[step];
      float w[kMany], b[kMany] = {};
      if constexpr (!kHeld) load<kWide>(x + row + j, v);
      load<kWide>(weight + j, w);
      if constexpr (kLayer) load<kWide>(bias + j, b);
      for (unsigned i = 0; i < kMany; ++i) v[i] = (v[i] - mean) * inverse * w[i] + b[i];
      store<kWide>(y + row + j, v);
    });
  }
}

template <bool kLayer, bool kWide, bool kHeld>
__global__ void __launch_bounds__(kThreads)
    norm_back_kernel(const float* weight, std::uint64_t rows, std::uint64_t width, const float* x,
                     const float* stats, const float* dy, float* gradient) {
  constexpr unsigned kMany = kPer<kWide>;
  const auto n = static_cast<float>(width);
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    const std::uint64_t row = r * width;
    const float mean = stats[2 * r], inverse = stats[2 * r + 1];
    float sum = 0, dot = 0;
    float at[kSteps<kWide, kHeld>][kMany] = {};  // x̂
    float of[kSteps<kWide, kHeld>][kMany] = {};  // dy * weight
    const auto read = [&](std::uint64_t j, unsigned step) {
      float v[kMany], w[kMany], d[kMany];
      load<kWide>(x + row + j, v);
      load<kWide>(weight + j, w);
      load<kWide>(dy + row + j, d);
      for (unsigned i = 0; i < kMany; ++i) {
        at[step][i] = (v[i] - mean) * inverse;
        of[step][i] = d[i] * w[i];
      }
    };
    for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
      read(j, step);
      for (unsigned i = 0; i < kMany; ++i) {
        sum += of[step][i];
        dot += of[step][i] * at[step][i];
      }
    });
    const float mean_g = kLayer ? warp_sum(sum) / n : 0.0f;
    const float mean_dot = warp_sum(dot) / n;
    for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
      float g[kMany];
      if constexpr (!kHeld) read(j, step);
      load<kWide>(gradient + row + j, g);
      for (unsigned i = 0; i < kMany; ++i)
        g[i] += inverse * (of[step][i] - mean_g - at[step][i] * mean_dot);
      store<kWide>(gradient + row + j, g);
    });
  }
}

/// partial[c] = sums over rows [c * kColumnRows, ...) of dy * x̂, then of dy; one thread per load.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    norm_columns_kernel(std::uint64_t rows, std::uint64_t width, const float* x, const float* stats,
                        const float* dy, float* partial) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows, groups = width / kMany;
  for (std::uint64_t t = thread_number(); t < parts * groups; t += thread_count()) {
    const std::uint64_t part = t / groups, column = t % groups * kMany;
    const std::uint64_t end = (part + 1) * kColumnRows < rows ? (part + 1) * kColumnRows : rows;
    float of_weight[kMany] = {}, of_bias[kMany] = {};
    for (std::uint64_t r = part * kColumnRows; r < end; ++r) {
      float v[kMany], d[kMany];
      load<kWide>(x + r * width + column, v);
      load<kWide>(dy + r * width + column, d);
      for (unsigned i = 0; i < kMany; ++i) {
        of_weight[i] += d[i] * ((v[i] - stats[2 * r]) * stats[2 * r + 1]);
        of_bias[i] += d[i];
      }
    }
    store<kWide>(partial + 2 * part * width + column, of_weight);
    store<kWide>(partial + (2 * part + 1) * width + column, of_bias);
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

/// Maximum and sum of exp(number - maximum) in one pass. A NaN, or an infinity, reaches the sum.
/// source  Milakov, Gimelshein 2018, "Online normalizer calculation for softmax"
struct Softmax {
  float top = -FLT_MAX, sum = 0;
};
/// Add the first `count` numbers of x.
template <unsigned kMany>
__device__ __forceinline__ void take(Softmax& of, const float (&x)[kMany], unsigned count) {
  float top = of.top;
  for (unsigned i = 0; i < kMany; ++i) top = i < count && x[i] > top ? x[i] : top;
  float sum = of.sum * exp_of(of.top - top);
  for (unsigned i = 0; i < kMany; ++i) sum += i < count ? exp_of(x[i] - top) : 0.0f;
  of = {top, sum};
}
/// Combine the results of the whole warp.
__device__ __forceinline__ void join(Softmax& of) {
  const float top = warp_max(of.top);
  of.sum = warp_sum(of.sum * exp_of(of.top - top));
  of.top = top;
}

__device__ __forceinline__ std::uint64_t number_of(const RowNumbers& at, std::uint64_t matrix,
                                                   std::uint64_t row) {
  return matrix / at.heads * at.of_sample + matrix % at.heads + row * at.of_row;
}

template <bool kWide, bool kHeld>
__global__ void __launch_bounds__(kThreads)
    causal_softmax_kernel(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                          std::uint64_t width, float scale, float* scores, float* lse,
                          RowNumbers at) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t r = first_row(); r < count * rows; r += row_step()) {
    float* row = scores + r * width;
    const std::uint64_t seen = begin + r % rows + 1;
    Softmax of;
    float held[kSteps<kWide, kHeld>][kMany] = {};
    for_columns<kWide, kHeld>(seen, [&](std::uint64_t j, unsigned step) {
      float(&x)[kMany] = held[step];
      load<kWide>(row + j, x);
      for (unsigned i = 0; i < kMany; ++i) x[i] *= scale;
      take(of, x, seen - j < kMany ? static_cast<unsigned>(seen - j) : kMany);
    });
    join(of);
    const float inverse = 1.0f / of.sum;
    for_columns<kWide, kHeld>(width, [&](std::uint64_t j, unsigned step) {
      float(&x)[kMany] = held[step];
      if constexpr (!kHeld) {
        load<kWide>(row + j, x);
        for (unsigned i = 0; i < kMany; ++i) x[i] *= scale;
      }
      for (unsigned i = 0; i < kMany; ++i)
        x[i] = j + i < seen ? exp_of(x[i] - of.top) * inverse : 0.0f;
      store<kWide>(row + j, x);
    });
    if (threadIdx.x % kLanes == 0)
      lse[number_of(at, r / rows, r % rows)] = of.top + std::log(of.sum);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    causal_softmax_back_kernel(std::uint64_t count, std::uint64_t rows, std::uint64_t begin,
                               std::uint64_t width, float scale, const float* lse,
                               const float* delta, RowNumbers numbers, float* scores,
                               float* dscores) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t r = first_row(); r < count * rows; r += row_step()) {
    const std::uint64_t number = number_of(numbers, r / rows, r % rows);
    const std::uint64_t seen = begin + r % rows + 1;
    const float of_lse = lse[number], of_delta = delta[number];
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float p[kMany], d[kMany];
      load<kWide>(scores + r * width + j, p);
      load<kWide>(dscores + r * width + j, d);
      for (unsigned i = 0; i < kMany; ++i) {
        const bool is_visible = j + i < seen;
        p[i] = is_visible ? exp_of(p[i] * scale - of_lse) : 0.0f;
        d[i] = is_visible ? p[i] * (d[i] - of_delta) * scale : 0.0f;
      }
      store<kWide>(scores + r * width + j, p);
      store<kWide>(dscores + r * width + j, d);
    }
  }
}

/// One pass for the largest logit and the sum, one for the gradient.
template <bool kWide, bool kHeld>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const std::uint32_t* labels, std::uint64_t rows, std::uint64_t classes,
                         const float* bias, float share, bool needs_gradient, float* logits,
                         float* losses, std::uint32_t* correct) {
  constexpr unsigned kMany = kPer<kWide>;
  const unsigned lane = threadIdx.x % kLanes;
  for (std::uint64_t r = first_row(); r < rows; r += row_step()) {
    float* row = logits + r * classes;
    const std::uint32_t label = labels[r];
    if (label == kNotJudged) {
      const float zeros[kMany] = {};
      for (std::uint64_t j = first_column<kWide>(); j < classes; j += kColumnStep<kWide>)
        store<kWide>(row + j, zeros);
      if (lane == 0) {
        losses[r] = 0;
        correct[r] = 0;
      }
      continue;
    }
    float held[kSteps<kWide, kHeld>][kMany] = {};
    const auto read = [&](std::uint64_t j, float(&x)[kMany]) {
      float b[kMany] = {};
      load<kWide>(row + j, x);
      if (bias != nullptr) load<kWide>(bias + j, b);
      for (unsigned i = 0; i < kMany; ++i) x[i] += b[i];
    };
    const float of_label = bias == nullptr ? row[label] : row[label] + bias[label];
    Softmax of;
    std::uint64_t first = classes;  // where index of this lane's first largest
    for_columns<kWide, kHeld>(classes, [&](std::uint64_t j, unsigned step) {
      float(&x)[kMany] = held[step];
      read(j, x);
      const float before = of.top;
      take(of, x, kMany);
      if (of.top > before)
        for (unsigned i = kMany; i-- > 0;) first = x[i] == of.top ? j + i : first;
    });
    const float mine = of.top;
    join(of);
    // An equally large logit has a smaller index than the label.
    const bool is_later = __ballot_sync(kAllLanes, mine == of.top && first < label) != 0;
    __syncwarp();  // all lanes have read `row`: a vote does not order memory accesses
    if (lane == 0) {
      losses[r] = std::log(of.sum) - (of_label - of.top);
      correct[r] = of_label == of.top && !is_later && of.sum == of.sum ? 1 : 0;
    }
    if (!needs_gradient) continue;
    const float factor = share / of.sum;
    for_columns<kWide, kHeld>(classes, [&](std::uint64_t j, unsigned step) {
      float(&x)[kMany] = held[step];
      if constexpr (!kHeld) read(j, x);
      for (unsigned i = 0; i < kMany; ++i)
        x[i] = exp_of(x[i] - of.top) * factor - (j + i == label ? share : 0.0f);
      store<kWide>(row + j, x);
    });
  }
}

}  // namespace centroid::worker::cuda
