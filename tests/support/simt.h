#pragma once

// Runs CUDA kernels on the CPU, so that tests reach them on machines without a GPU. Include this
// before the kernels (.cuh).
//
// Every CUDA thread is a fiber; the blocks run one after another. The schedule of threads is random
// (from `use_seed`), and some run far ahead, so that a missing __syncthreads is detected. The test
// fails if the lanes of a warp call different collectives or not all of them call one, and if
// threads wait forever. The address sanitizer checks every access. Not modelled: memory order
// between blocks, speed. Shared memory is static, so it has the values of the previous block.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define CENTROID_SIMT 1
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
using cudaStream_t = void*;

namespace centroid::simt {

struct Dim {
  unsigned x = 0;
};
struct Place {
  Dim thread, block, threads, blocks;
};

/// Run `kernel` once per thread of a grid. thread: one at a time.
void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel);
/// The queue behind a stream's native() (tests/support/late_device.h).
class Queue {
 public:
  /// `task` is called again until it returns true; later tasks wait.
  virtual void push(std::function<bool()> task) = 0;

 protected:
  ~Queue() = default;
};
/// The same on a stream; null: at once.
void launch_on(void* stream, unsigned blocks, unsigned threads, std::function<void()> kernel);
/// Change the schedule of threads.
void use_seed(std::uint64_t seed);
/// Number of kernels launched so far.
std::uint64_t launches();

const Place& place();
void sync_threads();
/// Exchange `value` with the warp's other lanes; `what` must be the same for all.
const std::array<std::uint64_t, 32>& meet(std::uint32_t mask, std::uint64_t value, int what);
[[noreturn]] void fail(const char* what);

template <class T>
std::uint64_t pack(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T unpack(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned lane() { return place().thread.x % 32; }

}  // namespace centroid::simt

#define threadIdx (::centroid::simt::place().thread)
#define blockIdx (::centroid::simt::place().block)
#define blockDim (::centroid::simt::place().threads)
#define gridDim (::centroid::simt::place().blocks)

inline void __syncthreads() { centroid::simt::sync_threads(); }

inline void __syncwarp(std::uint32_t mask = 0xFFFFFFFFu) { centroid::simt::meet(mask, 0, 9); }
inline std::uint32_t __ballot_sync(std::uint32_t mask, bool passes) {
  const auto& all = centroid::simt::meet(mask, passes ? 1 : 0, 1);
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 32; ++i) out |= ((mask >> i) & static_cast<std::uint32_t>(all[i])) << i;
  return out;
}
template <class T>
T __shfl_sync(std::uint32_t mask, T value, unsigned from) {
  const auto& all = centroid::simt::meet(mask, centroid::simt::pack(value), 2);
  if (((mask >> (from % 32)) & 1) == 0) centroid::simt::fail("__shfl_sync from an absent lane");
  return centroid::simt::unpack<T>(all[from % 32]);
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, unsigned distance) {
  const auto& all = centroid::simt::meet(mask, centroid::simt::pack(value), 3);
  const unsigned lane = centroid::simt::lane();
  return lane < distance ? value : centroid::simt::unpack<T>(all[lane - distance]);
}
inline std::uint32_t __reduce_max_sync(std::uint32_t mask, std::uint32_t value) {
  const auto& all = centroid::simt::meet(mask, value, 4);
  std::uint32_t most = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (((mask >> i) & 1) != 0 && all[i] > most) most = static_cast<std::uint32_t>(all[i]);
  return most;
}
inline std::uint32_t __reduce_add_sync(std::uint32_t mask, std::uint32_t value) {
  const auto& all = centroid::simt::meet(mask, value, 5);
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < 32; ++i)
    if (((mask >> i) & 1) != 0) sum += static_cast<std::uint32_t>(all[i]);
  return sum;
}
inline int __popc(std::uint32_t x) { return std::popcount(x); }
inline int __clz(std::uint32_t x) { return std::countl_zero(x); }

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <class T>
T atomicMin(T* at, T value) {
  const T before = *at;
  *at = value < before ? value : before;
  return before;
}
template <class T>
T atomicOr(T* at, T value) {
  const T before = *at;
  *at = before | value;
  return before;
}
