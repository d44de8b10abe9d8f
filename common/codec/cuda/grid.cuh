#pragma once

// What all kernels share. Compiled by nvcc, or by a C++ compiler for tests/support/simt.h.

#include <cstddef>
#include <cstdint>

#include "common/codec/topk_kernels.h"

#if defined(__CUDACC__)
#define CENTROID_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#elif defined(CENTROID_SIMT)
#define CENTROID_LAUNCH(kernel, blocks, threads, stream, ...) \
  (static_cast<void>(stream),                                 \
   ::centroid::simt::launch((blocks), (threads), [=] { kernel(__VA_ARGS__); }))
#else
#error "kernels are compiled by nvcc, or by tests that include tests/support/simt.h before"
#endif

namespace centroid::cuda {

using Wide = unsigned long long;  // what 64-bit atomics take

constexpr unsigned kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes;
constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;
/// Enough blocks for every processor to hold as many threads as it can (2048).
constexpr unsigned kBlocksPerProcessor = 8;

/// Blocks for `work` threads' worth of work, which a grid walks in strides.
inline unsigned blocks_for(std::uint64_t work, unsigned processors) {
  const std::uint64_t wanted = (work + kThreads - 1) / kThreads;
  const std::uint64_t most = std::uint64_t{processors} * kBlocksPerProcessor;
  const std::uint64_t blocks = wanted < most ? wanted : most;
  return blocks == 0 ? 1u : static_cast<unsigned>(blocks);
}

inline std::uint64_t address(const void* of) { return reinterpret_cast<std::uintptr_t>(of); }

__device__ __forceinline__ std::uint64_t thread_number() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint64_t thread_count() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

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

/// Counts in shared memory. Equal neighbours are counted in a register: an array of one number
/// would otherwise have all threads wait for one counter.
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
