#pragma once

// Rows of tokens, sums of columns, biases: what a model needs besides kernels.cuh.

#include "worker/model/cuda/kernels.cuh"

namespace centroid::worker::cuda {

template <bool kWide>
__global__ void __launch_bounds__(kThreads) zero_kernel(std::uint64_t n, float* out) {
  const float zeros[kPer<kWide>] = {};
  for (std::uint64_t g = thread_number(); g < n / kPer<kWide>; g += thread_count())
    store<kWide>(out + g * kPer<kWide>, zeros);
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    add_kernel(std::uint64_t n, const float* in, float* out) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t g = thread_number(); g < n / kMany; g += thread_count()) {
    float x[kMany], y[kMany];
    load<kWide>(in + g * kMany, x);
    load<kWide>(out + g * kMany, y);
    for (unsigned j = 0; j < kMany; ++j) y[j] += x[j];
    store<kWide>(out + g * kMany, y);
  }
}

/// out[r] = in[index[r]], or out[index[r]] = in[r].
template <bool kPlace, bool kWide>
__global__ void __launch_bounds__(kThreads)
    move_rows_kernel(std::uint64_t rows, std::uint64_t width, const std::uint32_t* index,
                     const float* in, float* out) {
  const std::uint64_t groups = width / kPer<kWide>;
  for (std::uint64_t t = thread_number(); t < rows * groups; t += thread_count()) {
    const std::uint64_t row = t / groups, column = t % groups * kPer<kWide>;
    const std::uint64_t here = row * width + column, other = index[row] * width + column;
    float x[kPer<kWide>];
    load<kWide>(in + (kPlace ? here : other), x);
    store<kWide>(out + (kPlace ? other : here), x);
  }
}

/// partial[c] = sums of the columns over rows [c * kColumnRows, ...), in the order of rows.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    column_parts_kernel(std::uint64_t rows, std::uint64_t width, const float* values,
                        float* partial) {
  constexpr unsigned kMany = kPer<kWide>;
  const std::uint64_t parts = (rows + kColumnRows - 1) / kColumnRows, groups = width / kMany;
  for (std::uint64_t t = thread_number(); t < parts * groups; t += thread_count()) {
    const std::uint64_t part = t / groups, column = t % groups * kMany;
    const std::uint64_t end = (part + 1) * kColumnRows < rows ? (part + 1) * kColumnRows : rows;
    float sum[kMany] = {};
    for (std::uint64_t r = part * kColumnRows; r < end; ++r) {
      float x[kMany];
      load<kWide>(values + r * width + column, x);
      for (unsigned i = 0; i < kMany; ++i) sum[i] += x[i];
    }
    store<kWide>(partial + part * width + column, sum);
  }
}

__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(std::uint64_t parts, std::uint64_t width, const float* partial,
                       float* sums) {
  for (std::uint64_t column = thread_number(); column < width; column += thread_count()) {
    float sum = 0;
    for (std::uint64_t part = 0; part < parts; ++part) sum += partial[part * width + column];
    sums[column] = sum;
  }
}

template <bool kGelu, bool kWide>
__global__ void __launch_bounds__(kThreads)
    bias_activate_kernel(std::uint64_t rows, std::uint64_t width, const float* bias, float* z,
                         float* slope) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t r = first_row(); r < rows; r += row_step())
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float x[kMany], b[kMany], s[kMany];
      load<kWide>(z + r * width + j, x);
      load<kWide>(bias + j, b);
      for (unsigned i = 0; i < kMany; ++i) {
        const float at = x[i] + b[i];
        activate<kGelu>(at, x[i], s[i]);
      }
      store<kWide>(z + r * width + j, x);
      if constexpr (kGelu)
        if (slope != nullptr) store<kWide>(slope + r * width + j, s);
    }
}

/// `of`: the slope of a GELU, or the output of a ReLU.
template <bool kGelu, bool kWide>
__global__ void __launch_bounds__(kThreads)
    slope_kernel(std::uint64_t n, const float* of, float* gradient) {
  constexpr unsigned kMany = kPer<kWide>;
  for (std::uint64_t g = thread_number(); g < n / kMany; g += thread_count()) {
    float x[kMany], y[kMany];
    load<kWide>(of + g * kMany, x);
    load<kWide>(gradient + g * kMany, y);
    for (unsigned j = 0; j < kMany; ++j) y[j] = kGelu ? y[j] * x[j] : (x[j] > 0.0f ? y[j] : 0.0f);
    store<kWide>(gradient + g * kMany, y);
  }
}

/// A thread for four neighbours: what dropout draws at a time.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(Dropout dropout, std::uint64_t rows, const std::uint32_t* tokens,
                 std::uint64_t context, std::uint64_t width, const float* table,
                 const float* positions, float* out) {
  const std::uint64_t groups = (width + 3) / 4;
  for (std::uint64_t g = thread_number(); g < rows * groups; g += thread_count()) {
    const std::uint64_t row = g / groups, group = g % groups, position = row % context;
    std::uint32_t kept = 0xF;
    if (dropout.threshold > 0) {
      const std::uint64_t key = mix64(dropout.keys[row / context], dropout.site);
      kept = survivors_of_four(key, position * groups + group, dropout.threshold);
    }
    const std::uint64_t token = tokens[row];
    for (std::uint64_t j = 4 * group; j < 4 * group + 4 && j < width; j += kPer<kWide>) {
      float x[kPer<kWide>], p[kPer<kWide>];
      load<kWide>(table + token * width + j, x);
      load<kWide>(positions + position * width + j, p);
      for (unsigned i = 0; i < kPer<kWide>; ++i) {
        x[i] += p[i];
        if (dropout.threshold > 0)
          x[i] = ((kept >> ((j + i) % 4)) & 1u) != 0 ? x[i] * dropout.scale : 0.0f;
      }
      store<kWide>(out + row * width + j, x);
    }
  }
}

/// A warp for every first row of a token and kColumnStep columns: it adds the rows of that token in
/// their order, so no two write to one place and the bits are those of the CPU.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    embed_back_kernel(std::uint64_t rows, const std::uint32_t* tokens, std::uint64_t width,
                      const float* gradient, float* table) {
  constexpr unsigned kMany = kPer<kWide>;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t parts = (width + kColumnStep<kWide> - 1) / kColumnStep<kWide>;
  for (std::uint64_t w = first_row(); w < rows * parts; w += row_step()) {
    const std::uint64_t row = w / parts;
    const std::uint64_t column = w % parts * kColumnStep<kWide> + first_column<kWide>();
    const std::uint32_t token = tokens[row];
    bool is_first = true;
    for (std::uint64_t at = 0; at < row && is_first; at += kLanes) {
      const bool same = at + lane < row && tokens[at + lane] == token;
      is_first = __ballot_sync(kAllLanes, same) == 0;
    }
    if (!is_first) continue;
    const bool has_column = column < width;
    float sum[kMany] = {};
    if (has_column) load<kWide>(table + token * width + column, sum);
    for (std::uint64_t at = row / kLanes * kLanes; at < rows; at += kLanes) {
      const std::uint64_t mine = at + lane;
      const bool same = mine >= row && mine < rows && tokens[mine] == token;
      for (std::uint32_t found = __ballot_sync(kAllLanes, same); found != 0; found &= found - 1) {
        const unsigned bit = 31u - static_cast<unsigned>(__clz(found & (0u - found)));
        if (!has_column) continue;
        float more[kMany];
        load<kWide>(gradient + (at + bit) * width + column, more);
        for (unsigned i = 0; i < kMany; ++i) sum[i] += more[i];
      }
    }
    if (has_column) store<kWide>(table + token * width + column, sum);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    head_dots_kernel(std::uint64_t groups, std::uint64_t width, const float* a, const float* b,
                     float* out) {
  for (std::uint64_t g = first_row(); g < groups; g += row_step()) {
    float sum = 0;
    for (std::uint64_t j = first_column<kWide>(); j < width; j += kColumnStep<kWide>) {
      float x[kPer<kWide>], y[kPer<kWide>];
      load<kWide>(a + g * width + j, x);
      load<kWide>(b + g * width + j, y);
      for (unsigned i = 0; i < kPer<kWide>; ++i) sum += x[i] * y[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kLanes == 0) out[g] = sum;
  }
}

/// Addresses of the matrices of a product of many: [3, samples * heads].
__global__ void __launch_bounds__(kThreads)
    point_kernel(std::uint64_t samples, std::uint64_t heads, Many a, Many b, Many c,
                 const float** out) {
  const std::uint64_t count = samples * heads;
  for (std::uint64_t t = thread_number(); t < 3 * count; t += thread_count()) {
    const Many& of = t < count ? a : t < 2 * count ? b : c;
    const std::uint64_t one = t % count;
    out[t] = of.first + one / heads * of.of_sample + one % heads * of.of_head;
  }
}

/// One block, a fixed order: the same bits every time.
__global__ void __launch_bounds__(kThreads)
    totals_kernel(const std::uint32_t* labels, std::uint64_t rows, const float* losses,
                  const std::uint32_t* correct, Totals* totals) {
  __shared__ double loss[kThreads];
  __shared__ unsigned long long right[kThreads], judged[kThreads];
  const unsigned me = threadIdx.x;
  double sum = 0;
  unsigned long long of_right = 0, of_judged = 0;
  for (std::uint64_t r = me; r < rows; r += kThreads) {
    sum += static_cast<double>(losses[r]);
    of_right += correct[r];
    of_judged += labels[r] != kNotJudged ? 1 : 0;
  }
  loss[me] = sum;
  right[me] = of_right;
  judged[me] = of_judged;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me < half) {
      loss[me] += loss[me + half];
      right[me] += right[me + half];
      judged[me] += judged[me + half];
    }
  }
  if (me == 0) {
    totals->loss += loss[0];
    totals->correct += right[0];
    totals->targets += judged[0];
  }
}

}  // namespace centroid::worker::cuda
