#pragma once

// Common to the codecs' kernels.

#include "common/codec/topk_kernels.h"
#include "common/device/cuda/grid.cuh"

namespace centroid::cuda {

/// Sum of the values of the threads before this one, and of all. For all threads of a block of
/// kThreads.
template <class T>
__device__ __forceinline__ T block_sum_before(T value, T& total) {
  __shared__ T sums[kWarps];
  const unsigned lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  T sum = value;
  for (unsigned distance = 1; distance < kLanes; distance *= 2) {
    const T other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kLanes - 1) sums[warp] = sum;
  __syncthreads();
  T before = sum - value;
  total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  __syncthreads();  // before the next call writes `sums`
  return before;
}

/// Counts in shared memory. Adjacent equal numbers are counted in a register: in an array of equal
/// numbers all threads would otherwise wait for one counter.
struct BinCounter {
  std::uint32_t bin = 0, count = 0;
  __device__ __forceinline__ void flush(std::uint32_t* bins) {
    if (count > 0) atomicAdd(&bins[bin], count);
    count = 0;
  }
  __device__ __forceinline__ void add(std::uint32_t* bins, std::uint32_t to) {
    if (to != bin) {
      flush(bins);
      bin = to;
    }
    ++count;
  }
};

}  // namespace centroid::cuda
