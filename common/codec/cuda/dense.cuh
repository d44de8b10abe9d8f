#pragma once

// Dense payloads: numbers to bytes, bytes to sums, and the remainder. One pass each.
//
// A payload is unaligned in general: with kFast its numbers are aligned (kernels.h) and eight are
// accessed together, otherwise every byte on its own. Without a payload, kWide means that all
// numbers are on 16-byte boundaries (grid.cuh).

#include "common/codec/cuda/grid.cuh"
#include "common/codec/cuda/kernels.h"
#include "common/codec/format.h"
#include "common/codec/int8_kernels.h"
#include "common/codec/sign_kernels.h"

namespace centroid::cuda {

constexpr unsigned kEight = 8;

template <class T>
__device__ __forceinline__ void store_bytes(std::byte* to, T value) {
  const auto bits = static_cast<std::uint32_t>(value);
  for (unsigned b = 0; b < sizeof(T); ++b) to[b] = static_cast<std::byte>(bits >> (8 * b) & 0xFF);
}

__device__ __forceinline__ void load_eight(const float* from, float* to) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  to[0] = low.x;
  to[1] = low.y;
  to[2] = low.z;
  to[3] = low.w;
  to[4] = high.x;
  to[5] = high.y;
  to[6] = high.z;
  to[7] = high.w;
}
__device__ __forceinline__ void store_eight(float* to, const float* from) {
  reinterpret_cast<float4*>(to)[0] = float4{from[0], from[1], from[2], from[3]};
  reinterpret_cast<float4*>(to)[1] = float4{from[4], from[5], from[6], from[7]};
}

/// `kNotFinite` and `kInexact` of one number.
__device__ __forceinline__ std::uint32_t flags_of(float x, float sent) {
  const std::uint32_t finite = topk::key_of(x) < topk::kInfinity ? 0 : kNotFinite;
  return finite | (sent + (x - sent) == x ? 0 : kInexact);
}

template <class Format, bool kFast>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(const float* x, std::uint64_t n, std::byte* out, std::uint32_t* flags) {
  static_assert(sizeof(typename Format::Stored) == 2);
  std::uint32_t seen = 0;
  const std::uint64_t groups = kFast ? n / kEight : 0;
  for (std::uint64_t g = thread_number(); kFast && g < groups; g += thread_count()) {
    float v[kEight];
    std::uint32_t words[kEight / 2] = {};
    load_eight(x + kEight * g, v);
    for (unsigned j = 0; j < kEight; ++j) {
      const std::uint16_t stored = Format::shrink(v[j]);
      words[j / 2] |= std::uint32_t{stored} << (16 * (j % 2));
      seen |= flags_of(v[j], Format::expand(stored));
    }
    reinterpret_cast<uint4*>(out)[g] = uint4{words[0], words[1], words[2], words[3]};
  }
  for (std::uint64_t i = kEight * groups + thread_number(); i < n; i += thread_count()) {
    const std::uint16_t stored = Format::shrink(x[i]);
    store_bytes(out + 2 * i, stored);
    seen |= flags_of(x[i], Format::expand(stored));
  }
  if (seen != 0) atomicOr(flags, seen);
}

template <class Format, bool kWide>
__global__ void __launch_bounds__(kThreads)
    subtract_kernel(float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags) {
  if (*flags != 0) return;
  constexpr unsigned kMany = kPer<kWide>;
  const float zeros[kMany] = {};
  const std::uint64_t groups = n / kMany;
  for (std::uint64_t g = thread_number(); g < groups; g += thread_count()) {
    float v[kMany];
    load<kWide>(x + kMany * g, v);
    for (unsigned j = 0; j < kMany; ++j) v[j] = v[j] - Format::expand(Format::shrink(v[j]));
    store<kWide>(x + kMany * g, v);
    if (momentum != nullptr) store<kWide>(momentum + kMany * g, zeros);
  }
  for (std::uint64_t i = kMany * groups + thread_number(); i < n; i += thread_count()) {
    x[i] = x[i] - Format::expand(Format::shrink(x[i]));
    if (momentum != nullptr) momentum[i] = 0.0f;
  }
}

/// A warp's part of a block of 256: eight numbers per lane.
struct Int8Part {
  float v[kEight];
  std::uint32_t count;    // of the block
  std::uint32_t largest;  // magnitude of the block

  /// Place of a lane's j-th number in the block: adjacent with kFast, else 32 apart.
  template <bool kFast>
  static __device__ __forceinline__ std::uint32_t place(unsigned lane, unsigned j) {
    return kFast ? kEight * lane + j : lane + kLanes * j;
  }

  template <bool kFast>
  static __device__ __forceinline__ Int8Part load(const float* x, std::uint64_t begin,
                                                  std::uint64_t n, unsigned lane) {
    Int8Part part{};
    part.count = static_cast<std::uint32_t>(n - begin < int8::kBlock ? n - begin : int8::kBlock);
    if (kFast && part.count == int8::kBlock) {
      load_eight(x + begin + kEight * lane, part.v);
    } else {
      for (unsigned j = 0; j < kEight; ++j) {
        const std::uint32_t i = place<kFast>(lane, j);
        part.v[j] = i < part.count ? x[begin + i] : 0.0f;
      }
    }
    std::uint32_t most = 0;
    for (unsigned j = 0; j < kEight; ++j) {
      const std::uint32_t key = topk::key_of(part.v[j]);
      most = key > most ? key : most;
    }
    part.largest = __reduce_max_sync(kAllLanes, most);
    return part;
  }
};

/// A warp per block of 256 numbers.
template <Rounding kRounding, bool kFast>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const float* x, std::uint64_t n, int8::Key key, std::byte* scales,
                    std::byte* out, std::uint32_t* flags) {
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t blocks = (n + int8::kBlock - 1) / int8::kBlock;
  for (std::uint64_t b = thread_number() / kLanes; b < blocks; b += thread_count() / kLanes) {
    const std::uint64_t begin = b * int8::kBlock;
    Int8Part part = Int8Part::load<kFast>(x, begin, n, lane);
    if (part.largest >= int8::limit(kRounding)) {
      if (lane == 0) atomicOr(flags, kNotFinite);
      continue;
    }
    const int8::Step step = int8::step_of(part.largest, kRounding);
    if (lane == 0) store_bytes(scales + 2 * b, step.stored);
    std::uint8_t q[kEight];
    for (unsigned j = 0; j < kEight; ++j) {
      float quotient = part.v[j] * step.inverse;
      if constexpr (kRounding == Rounding::kStochastic)
        quotient +=
            int8::dither(key, static_cast<std::uint32_t>(begin) + Int8Part::place<kFast>(lane, j));
      q[j] = int8::rounded(quotient);
    }
    if (kFast && part.count == int8::kBlock) {
      std::uint32_t words[2] = {};
      for (unsigned j = 0; j < kEight; ++j) words[j / 4] |= std::uint32_t{q[j]} << (8 * (j % 4));
      reinterpret_cast<uint2*>(out + begin)[lane] = uint2{words[0], words[1]};
      continue;
    }
    for (unsigned j = 0; j < kEight; ++j) {
      const std::uint32_t i = Int8Part::place<kFast>(lane, j);
      if (i < part.count) out[begin + i] = static_cast<std::byte>(q[j]);
    }
  }
}

/// Recompute scale and bits, which is cheaper than reading them from host memory.
template <bool kFast>
__global__ void __launch_bounds__(kThreads)
    subtract_int8_kernel(float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags) {
  if (*flags != 0) return;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t blocks = (n + int8::kBlock - 1) / int8::kBlock;
  for (std::uint64_t b = thread_number() / kLanes; b < blocks; b += thread_count() / kLanes) {
    const std::uint64_t begin = b * int8::kBlock;
    Int8Part part = Int8Part::load<kFast>(x, begin, n, lane);
    const int8::Step step = int8::step_of(part.largest, Rounding::kNearest);
    const float scale = f32_from_bf16(step.stored);
    for (unsigned j = 0; j < kEight; ++j)
      part.v[j] = part.v[j] - int8::dequantized(scale, int8::rounded(part.v[j] * step.inverse));
    if (kFast && part.count == int8::kBlock) {
      const float zeros[kEight] = {};
      store_eight(x + begin + kEight * lane, part.v);
      if (momentum != nullptr) store_eight(momentum + begin + kEight * lane, zeros);
      continue;
    }
    for (unsigned j = 0; j < kEight; ++j) {
      const std::uint32_t i = Int8Part::place<kFast>(lane, j);
      if (i >= part.count) continue;
      x[begin + i] = part.v[j];
      if (momentum != nullptr) momentum[begin + i] = 0.0f;
    }
  }
}

/// Transpose four numbers in each of a warp's lanes; lane / 8 is the row. Afterwards a lane has
/// number lane / 8 of the four lanes at its place in rows 0, 1, 2 and 3, in that order.
__device__ __forceinline__ void transpose(float (&v)[4], unsigned lane) {
  const auto swap = [lane](float& low, float& high, unsigned bit) {
    const bool is_upper = (lane & bit) != 0;
    const float got = __shfl_sync(kAllLanes, is_upper ? low : high, static_cast<int>(lane ^ bit));
    (is_upper ? low : high) = got;
  };
  swap(v[0], v[2], 16);
  swap(v[1], v[3], 16);
  swap(v[0], v[1], 8);
  swap(v[2], v[3], 8);
}

/// A warp's part of a block of 256: eight numbers per lane, four adjacent ones in each half of the
/// block, accessed together with kWide.
template <bool kWide>
struct SignPart {
  float v[2][4];
  std::uint32_t count;  // of the block
  float sum;            // of all parts of sign_kernels.h

  /// Place of the first of a lane's four numbers of a half.
  static __device__ __forceinline__ std::uint32_t place(unsigned lane, unsigned half) {
    return 4 * (kLanes * half + lane);
  }

  static __device__ __forceinline__ SignPart load(const float* x, std::uint64_t begin,
                                                  std::uint64_t n, unsigned lane) {
    SignPart part{};
    part.count = static_cast<std::uint32_t>(n - begin < sign::kBlock ? n - begin : sign::kBlock);
    // Number i of the block goes to sum i mod 32. Lane l has numbers 4 (l mod 8) + (l / 8) mod 32
    // once they are transposed, in the order of i; missing numbers are 0 and change no sum.
    float sum = 0;
    for (unsigned half = 0; half < 2; ++half) {
      float(&v)[4] = part.v[half];
      const std::uint32_t first = place(lane, half);
      if (kWide && part.count == sign::kBlock) {
        cuda::load<true>(x + begin + first, v);
      } else {
        for (unsigned j = 0; j < 4; ++j) v[j] = first + j < part.count ? x[begin + first + j] : 0;
      }
      float of_sums[4];
      for (unsigned j = 0; j < 4; ++j) of_sums[j] = sign::part_of(v[j]);
      transpose(of_sums, lane);
      for (unsigned j = 0; j < 4; ++j) sum += of_sums[j];
    }
    // Sums that are 16, 8, 4, 2 and 1 apart.
    for (const unsigned distance : {4u, 2u, 1u, 16u, 8u})
      sum += __shfl_sync(kAllLanes, sum, static_cast<int>(lane ^ distance));
    part.sum = sum;
    return part;
  }
  __device__ __forceinline__ std::uint16_t scale() const { return sign::scale_of(sum, count); }

  /// Signs of a half's four numbers.
  __device__ __forceinline__ std::uint32_t signs(unsigned half) const {
    std::uint32_t bits = 0;
    for (unsigned j = 0; j < 4; ++j) bits |= (std::bit_cast<std::uint32_t>(v[half][j]) >> 31) << j;
    return bits;
  }
};

/// A warp per block of 256 numbers.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    quantize_sign_kernel(const float* x, std::uint64_t n, std::byte* scales, std::byte* bits,
                         std::uint32_t* flags) {
  static_assert(sign::kParts == kLanes && sign::kBlock == kEight * kLanes);
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t blocks = (n + sign::kBlock - 1) / sign::kBlock;
  for (std::uint64_t b = thread_number() / kLanes; b < blocks; b += thread_count() / kLanes) {
    const std::uint64_t begin = b * sign::kBlock;
    const auto part = SignPart<kWide>::load(x, begin, n, lane);
    if (!sign::is_finite(part.sum)) {
      if (lane == 0) atomicOr(flags, kNotFinite);
      continue;
    }
    if (lane == 0) store_bytes(scales + 2 * b, part.scale());
    // One byte per lane: two adjacent lanes have two bytes; the even lane's is in the block's first
    // half.
    const std::uint32_t mine = part.signs(0) | part.signs(1) << 4;
    const std::uint32_t other = __shfl_sync(kAllLanes, mine, static_cast<int>(lane ^ 1));
    const bool is_even = lane % 2 == 0;
    const std::uint32_t byte =
        is_even ? (mine & 0xF) | (other & 0xF) << 4 : other >> 4 | (mine & 0xF0);
    const unsigned at = is_even ? lane / 2 : kLanes / 2 + lane / 2;
    if (at < (part.count + 7) / 8) bits[begin / 8 + at] = static_cast<std::byte>(byte);
  }
}

/// Recompute the scale, which is cheaper than reading it from host memory.
template <bool kWide>
__global__ void __launch_bounds__(kThreads)
    subtract_sign_kernel(float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags) {
  if (*flags != 0) return;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t blocks = (n + sign::kBlock - 1) / sign::kBlock;
  for (std::uint64_t b = thread_number() / kLanes; b < blocks; b += thread_count() / kLanes) {
    const std::uint64_t begin = b * sign::kBlock;
    auto part = SignPart<kWide>::load(x, begin, n, lane);
    const float scale = f32_from_bf16(part.scale());
    for (unsigned half = 0; half < 2; ++half) {
      float(&v)[4] = part.v[half];
      const std::uint32_t signs = part.signs(half);
      const std::uint64_t first = begin + part.place(lane, half);
      for (unsigned j = 0; j < 4; ++j) v[j] = v[j] - sign::dequantized(scale, signs >> j & 1);
      if (kWide && part.count == sign::kBlock) {
        const float zeros[4] = {};
        store<true>(x + first, v);
        if (momentum != nullptr) store<true>(momentum + first, zeros);
        continue;
      }
      for (unsigned j = 0; j < 4; ++j) {
        if (first + j >= n) continue;
        x[first + j] = v[j];
        if (momentum != nullptr) momentum[first + j] = 0.0f;
      }
    }
  }
}

// ---- launches ------------------------------------------------------------------------------

template <class Format>
void launch_encode_half(const EncodeArguments& of, unsigned processors, cudaStream_t stream) {
  const bool is_fast = (address(of.x) | address(of.out)) % 16 == 0;
  const auto kernel = is_fast ? encode_kernel<Format, true> : encode_kernel<Format, false>;
  const unsigned blocks = blocks_for((of.n + kEight - 1) / kEight, processors);
  CENTROID_LAUNCH(kernel, blocks, kThreads, stream, of.x, of.n, of.out, of.flags);
}

/// A warp per block of 256 numbers.
inline unsigned warp_blocks(std::uint64_t n, unsigned processors) {
  return blocks_for((n + int8::kBlock - 1) / int8::kBlock * kLanes, processors);
}

template <Rounding kRounding>
void launch_quantize(const EncodeArguments& of, unsigned processors, cudaStream_t stream) {
  std::byte* numbers = of.out + (int8::bytes(of.n) - of.n);
  const bool is_fast = address(of.x) % 16 == 0 && address(numbers) % 8 == 0;
  const auto kernel =
      is_fast ? quantize_kernel<kRounding, true> : quantize_kernel<kRounding, false>;
  CENTROID_LAUNCH(kernel, warp_blocks(of.n, processors), kThreads, stream, of.x, of.n,
                  int8::key_of(of.stream), of.out, numbers, of.flags);
}

inline void launch_encode(const EncodeArguments& of, unsigned processors, cudaStream_t stream) {
  switch (of.type) {
    case Dense::kF32:
      return;
    case Dense::kBf16:
      return launch_encode_half<format::Bf16>(of, processors, stream);
    case Dense::kF16:
      return launch_encode_half<format::F16>(of, processors, stream);
    case Dense::kFiniteBf16:
      return launch_encode_half<format::FiniteBf16>(of, processors, stream);
    case Dense::kSign: {
      const auto kernel =
          address(of.x) % 16 == 0 ? quantize_sign_kernel<true> : quantize_sign_kernel<false>;
      std::byte* bits = of.out + (sign::bytes(of.n) - (of.n + 7) / 8);
      CENTROID_LAUNCH(kernel, warp_blocks(of.n, processors), kThreads, stream, of.x, of.n, of.out,
                      bits, of.flags);
      return;
    }
    case Dense::kInt8:
      break;
  }
  if (of.rounding == Rounding::kNearest)
    return launch_quantize<Rounding::kNearest>(of, processors, stream);
  launch_quantize<Rounding::kStochastic>(of, processors, stream);
}

template <class Format>
void launch_subtract_plain(float* x, float* momentum, std::uint64_t n, const std::uint32_t* flags,
                           unsigned processors, cudaStream_t stream) {
  const bool is_wide = (address(x) | address(momentum)) % 16 == 0;
  const auto kernel = is_wide ? subtract_kernel<Format, true> : subtract_kernel<Format, false>;
  const std::uint64_t groups = is_wide ? (n + kPer<true> - 1) / kPer<true> : n;
  CENTROID_LAUNCH(kernel, blocks_for(groups, processors), kThreads, stream, x, momentum, n, flags);
}

inline void launch_subtract(Dense type, float* x, float* momentum, std::uint64_t n,
                            const std::uint32_t* flags, unsigned processors, cudaStream_t stream) {
  const bool is_wide = (address(x) | address(momentum)) % 16 == 0;
  switch (type) {
    case Dense::kF32:
      return launch_subtract_plain<format::F32>(x, momentum, n, flags, processors, stream);
    case Dense::kBf16:
      return launch_subtract_plain<format::Bf16>(x, momentum, n, flags, processors, stream);
    case Dense::kF16:
      return launch_subtract_plain<format::F16>(x, momentum, n, flags, processors, stream);
    case Dense::kFiniteBf16:
      return launch_subtract_plain<format::FiniteBf16>(x, momentum, n, flags, processors, stream);
    case Dense::kSign: {
      const auto sign_kernel = is_wide ? subtract_sign_kernel<true> : subtract_sign_kernel<false>;
      CENTROID_LAUNCH(sign_kernel, warp_blocks(n, processors), kThreads, stream, x, momentum, n,
                      flags);
      return;
    }
    case Dense::kInt8:
      break;
  }
  const auto kernel = is_wide ? subtract_int8_kernel<true> : subtract_int8_kernel<false>;
  CENTROID_LAUNCH(kernel, warp_blocks(n, processors), kThreads, stream, x, momentum, n, flags);
}

}  // namespace centroid::cuda
