#include "common/codec/int8.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "common/codec/int8_kernels.h"
#include "common/tensor/dtype.h"
#include "common/tensor/multiversion.h"

namespace centroid::int8 {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;

std::uint16_t load16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <bool kFirst>
struct Dequantize {
  CENTROID_KERNEL void run(const std::byte* in, const std::byte* scales, float weight,
                           float* __restrict acc, std::size_t n) {
    for (std::size_t begin = 0; begin < n; begin += kBlock, scales += 2) {
      const float scale = f32_from_bf16(load16(scales));
      const std::size_t end = std::min(n, begin + kBlock);
      CENTROID_INDEPENDENT
      for (std::size_t i = begin; i < end; ++i) {
        const float x = weight * dequantized(scale, static_cast<std::uint8_t>(in[i]));
        acc[i] = kFirst ? x : acc[i] + x;
      }
    }
  }
};

struct FindMinimum {
  CENTROID_KERNEL void run(const std::byte* in, std::size_t n, bool* found) {
    std::uint8_t any = 0;
    for (std::size_t i = 0; i < n; ++i) any |= static_cast<std::uint8_t>(in[i] == std::byte{0x80});
    *found = any != 0;
  }
};

/// The sum of a block is exact: 256 squares of at most 2^14.
struct AddSquares {
  CENTROID_KERNEL void run(const std::byte* in, const std::byte* scales, std::size_t n,
                           double* out) {
    double total = 0;
    for (std::size_t begin = 0; begin < n; begin += kBlock, scales += 2) {
      const auto scale = static_cast<double>(f32_from_bf16(load16(scales)));
      const std::size_t end = std::min(n, begin + kBlock);
      std::int32_t sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const std::int32_t q = static_cast<std::int8_t>(in[i]);
        sum += q * q;
      }
      total += scale * scale * sum;
    }
    *out = total;
  }
};

/// The fastest loop for complete blocks; null: only the portable one.
QuantizeBlocks fastest_blocks() {
#if defined(__x86_64__)
  if (active_isa() == Isa::kAvx512) return quantize_avx512;
  if (active_isa() == Isa::kAvx2) return quantize_avx2;
#elif defined(__aarch64__)
  if (active_isa() == Isa::kNeon) return quantize_neon;
#endif
  return nullptr;
}

}  // namespace

bool quantize_portable(const float* x, std::size_t n, std::uint32_t first, Rounding rounding,
                       Key key, std::byte* scales, std::byte* out) {
  for (std::size_t begin = 0; begin < n; begin += kBlock, scales += 2) {
    const std::size_t count = std::min(kBlock, n - begin);
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i)
      largest = std::max(largest, std::bit_cast<std::uint32_t>(x[begin + i]) & kMagnitude);
    if (largest >= limit(rounding)) return false;
    const Step step = step_of(largest, rounding);
    std::memcpy(scales, &step.stored, sizeof step.stored);
    for (std::size_t i = 0; i < count; ++i) {
      float quotient = x[begin + i] * step.inverse;
      if (rounding == Rounding::kStochastic)
        quotient += dither(key, first + static_cast<std::uint32_t>(begin + i));
      out[begin + i] = static_cast<std::byte>(rounded(quotient));
    }
  }
  return true;
}

bool quantize(std::span<const float> x, Draw draw, std::byte* out) {
  const std::size_t n = x.size(), full_blocks = n / kBlock;
  const Key key = key_of(draw.stream);
  std::byte* scales = out;
  std::byte* numbers = out + (bytes(n) - n);
  std::size_t done = 0;
  if (const QuantizeBlocks blocks = fastest_blocks()) {
    if (!blocks(x.data(), full_blocks, 0, draw.rounding, key, scales, numbers)) return false;
    done = full_blocks * kBlock;
  }
  return quantize_portable(x.data() + done, n - done, static_cast<std::uint32_t>(done),
                           draw.rounding, key, scales + done / kBlock * 2, numbers + done);
}

Status check(Bytes in, std::size_t n) {
  const auto bad = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "int8: " + what);
  };
  if (in.size() != bytes(n))
    return bad(std::to_string(in.size()) + " bytes, expected " + std::to_string(bytes(n)));
  const std::size_t scales = bytes(n) - n;
  for (std::size_t at = 0; at < scales; at += 2)
    if (load16(in.data() + at) > kLargestScale)
      return bad("scale of block " + std::to_string(at / 2) + " is negative or too large");
  bool found = false;
  run_multiversioned<FindMinimum>(in.data() + scales, n, &found);
  if (found) return bad("-128 is not a quantised number");
  return {};
}

double squares(Bytes in, std::size_t n) {
  double sum = 0;
  run_multiversioned<AddSquares>(in.data() + (bytes(n) - n), in.data(), n, &sum);
  return sum;
}

void dequantize(Bytes in, std::span<float> out) {
  const std::size_t n = out.size();
  run_multiversioned<Dequantize<true>>(in.data() + (bytes(n) - n), in.data(), 1.0f, out.data(), n);
}

void dequantize_add(Bytes in, float weight, bool first, std::span<float> acc) {
  const std::size_t n = acc.size();
  const std::byte* numbers = in.data() + (bytes(n) - n);
  if (first)
    run_multiversioned<Dequantize<true>>(numbers, in.data(), weight, acc.data(), n);
  else
    run_multiversioned<Dequantize<false>>(numbers, in.data(), weight, acc.data(), n);
}

}  // namespace centroid::int8
