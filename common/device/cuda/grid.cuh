#pragma once

// Common to all kernels. Compiled by nvcc, or by a C++ compiler for tests/support/simt.h.

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define CENTROID_LAUNCH(kernel, blocks, threads, stream, ...) \
  kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#elif defined(CENTROID_SIMT)
#define CENTROID_LAUNCH(kernel, blocks, threads, stream, ...) \
  ::centroid::simt::launch_on((stream), (blocks), (threads), [=] { kernel(__VA_ARGS__); })
#else
#error "kernels are compiled by nvcc, or by tests that include tests/support/simt.h before"
#endif

namespace centroid::cuda {

using Wide = unsigned long long;  // what 64-bit atomics take

constexpr unsigned kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes;
constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;
/// Enough blocks for every processor to run as many threads as it can (2048).
constexpr unsigned kBlocksPerProcessor = 8;

/// Blocks for `work` threads' worth of work, which a grid walks in strides.
inline unsigned blocks_for(std::uint64_t work, unsigned processors) {
  const std::uint64_t requested = (work + kThreads - 1) / kThreads;
  const std::uint64_t most = std::uint64_t{processors} * kBlocksPerProcessor;
  const std::uint64_t blocks = requested < most ? requested : most;
  return blocks == 0 ? 1u : static_cast<unsigned>(blocks);
}

inline std::uint64_t address(const void* of) { return reinterpret_cast<std::uintptr_t>(of); }

/// Floats that a thread loads and stores at a time: with kWide four, from a 16-byte boundary.
template <bool kWide>
constexpr unsigned kPer = kWide ? 4 : 1;

template <bool kWide>
__device__ __forceinline__ void load(const float* from, float* to) {
  if constexpr (kWide) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  } else {
    to[0] = *from;
  }
}
template <bool kWide>
__device__ __forceinline__ void store(float* to, const float* from) {
  if constexpr (kWide)
    *reinterpret_cast<float4*>(to) = float4{from[0], from[1], from[2], from[3]};
  else
    *to = from[0];
}

__device__ __forceinline__ std::uint64_t thread_number() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::uint64_t thread_count() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

/// The sum over a warp, the same bits in all its lanes.
__device__ __forceinline__ float warp_sum(float value) {
  for (unsigned distance = kLanes / 2; distance > 0; distance /= 2)
    value += __shfl_sync(kAllLanes, value, static_cast<int>((threadIdx.x % kLanes) ^ distance));
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (unsigned distance = kLanes / 2; distance > 0; distance /= 2) {
    const float other =
        __shfl_sync(kAllLanes, value, static_cast<int>((threadIdx.x % kLanes) ^ distance));
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace centroid::cuda
