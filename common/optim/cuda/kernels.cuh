#pragma once

#include <cmath>

#include "common/device/cuda/grid.cuh"
#include "common/optim/cuda/kernels.h"

namespace centroid::cuda {

template <class Rule, bool kWide>
__device__ __forceinline__ void update_at(const Rule& rule, std::uint64_t i, float factor,
                                          const float* gradient, float* params, float* slot0,
                                          float* slot1) {
  constexpr unsigned kMany = kPer<kWide>;
  float p[kMany], g[kMany], a[kMany] = {}, b[kMany] = {};
  load<kWide>(params + i, p);
  load<kWide>(gradient + i, g);
  if constexpr (Rule::kSlots > 0) load<kWide>(slot0 + i, a);
  if constexpr (Rule::kSlots > 1) load<kWide>(slot1 + i, b);
  for (unsigned j = 0; j < kMany; ++j) p[j] = rule.next(p[j], g[j] * factor, a[j], b[j]);
  store<kWide>(params + i, p);
  if constexpr (Rule::kSlots > 0) store<kWide>(slot0 + i, a);
  if constexpr (Rule::kSlots > 1) store<kWide>(slot1 + i, b);
}

template <class Rule, bool kWide>
__global__ void __launch_bounds__(kThreads)
    update_kernel(Rule rule, std::uint64_t n, const float* gradient, const float* clipped,
                  float* params, float* slot0, float* slot1) {
  constexpr unsigned kMany = kPer<kWide>;
  const float factor = clipped == nullptr ? 1.0f : *clipped;
  const std::uint64_t groups = n / kMany;
  for (std::uint64_t g = thread_number(); g < groups; g += thread_count())
    update_at<Rule, kWide>(rule, kMany * g, factor, gradient, params, slot0, slot1);
  if constexpr (kWide) {
    const std::uint64_t rest = kMany * groups + thread_number();
    if (rest < n) update_at<Rule, false>(rule, rest, factor, gradient, params, slot0, slot1);
  }
}

/// One warp per block of numbers; norm.h defines the order of the additions. Lane l has sums 4 l to
/// 4 l + 3 of the block.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(std::uint64_t n, std::uint64_t blocks, const float* x, double* sums) {
  constexpr unsigned kMine = rules::kSquaresLanes / kLanes;
  static_assert(kMine == kPer<true>);
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t warp = thread_number() / kLanes, warps = thread_count() / kLanes;
  for (std::uint64_t block = warp; block < blocks; block += warps) {
    const std::uint64_t begin = block * rules::kSquaresBlock;
    const std::uint64_t end = begin + rules::kSquaresBlock < n ? begin + rules::kSquaresBlock : n;
    double sum[kMine] = {};
    for (std::uint64_t i = begin + kMine * lane; i < end; i += rules::kSquaresLanes) {
      float v[kMine] = {};
      if (kWide && i + kMine <= end) {
        load<kWide>(x + i, v);
      } else {
        for (unsigned j = 0; j < kMine && i + j < end; ++j) v[j] = x[i + j];
      }
      for (unsigned j = 0; j < kMine; ++j) {
        const auto value = static_cast<double>(v[j]);
        sum[j] += value * value;  // exact, so a fused operation gives the same bits
      }
    }
    for (unsigned distance = kLanes / 2; distance > 0; distance /= 2)
      for (unsigned j = 0; j < kMine; ++j)
        sum[j] += __shfl_sync(kAllLanes, sum[j], static_cast<int>(lane ^ distance));
    if (lane == 0) sums[block] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
}

/// One block.
__global__ void __launch_bounds__(kThreads)
    clip_kernel(std::uint64_t blocks, const double* sums, double bound, Clip* out) {
  static_assert(kThreads == rules::kSquaresTotals);
  __shared__ double totals[kThreads];
  const unsigned me = threadIdx.x;
  double sum = 0;
  for (std::uint64_t b = me; b < blocks; b += kThreads) sum += sums[b];
  totals[me] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me < half) totals[me] += totals[me + half];
  }
  if (me == 0) {
    out->norm = std::sqrt(totals[0]);
    out->factor = rules::clip_factor_of(out->norm, bound);
  }
}

}  // namespace centroid::cuda
