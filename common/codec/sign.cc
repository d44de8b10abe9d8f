#include "common/codec/sign.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/codec/sign_kernels.h"
#include "common/tensor/dtype.h"
#include "common/tensor/multiversion.h"

namespace centroid::sign {
namespace {

std::uint16_t load16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

constexpr std::size_t scale_bytes(std::size_t n) { return 2 * ((n + kBlock - 1) / kBlock); }

/// 32 numbers from the bits of one word; a mask per number lets the loop vectorise everywhere.
template <bool kFirst>
[[gnu::always_inline]] inline void take_word(std::uint32_t word, float scale, float weight,
                                             float* __restrict acc, std::size_t count) {
  CENTROID_INDEPENDENT
  for (std::size_t j = 0; j < count; ++j) {
    const std::uint32_t is_negative = (word & (1u << j)) != 0 ? 1u : 0u;
    const float x = weight * dequantized(scale, is_negative);
    acc[j] = kFirst ? x : acc[j] + x;
  }
}

template <bool kFirst>
struct Dequantize {
  CENTROID_KERNEL void run(const std::byte* bits, const std::byte* scales, float weight,
                           float* __restrict acc, std::size_t n) {
    std::size_t i = 0;
    for (; i + kParts <= n; i += kParts) {
      const float scale = f32_from_bf16(load16(scales + 2 * (i / kBlock)));
      std::uint32_t word;
      std::memcpy(&word, bits + i / 8, sizeof word);
      take_word<kFirst>(word, scale, weight, acc + i, kParts);
    }
    if (i == n) return;
    std::uint32_t word = 0;
    std::memcpy(&word, bits + i / 8, (n - i + 7) / 8);
    const float scale = f32_from_bf16(load16(scales + 2 * (i / kBlock)));
    take_word<kFirst>(word, scale, weight, acc + i, n - i);
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

bool quantize_portable(const float* x, std::size_t n, std::byte* scales, std::byte* bits) {
  for (std::size_t begin = 0; begin < n; begin += kBlock, scales += 2) {
    const std::size_t count = std::min(kBlock, n - begin);
    std::array<float, kParts> parts{};
    for (std::size_t i = 0; i < count; ++i) parts[i % kParts] += part_of(x[begin + i]);
    for (std::size_t apart = kParts / 2; apart > 0; apart /= 2)
      for (std::size_t j = 0; j < apart; ++j) parts[j] += parts[j + apart];
    if (!is_finite(parts[0])) return false;
    const std::uint16_t scale = scale_of(parts[0], count);
    std::memcpy(scales, &scale, sizeof scale);
    for (std::size_t i = 0; i < count; i += 8) {
      unsigned byte = 0;
      for (std::size_t j = i; j < std::min(count, i + 8); ++j)
        byte |= std::bit_cast<std::uint32_t>(x[begin + j]) >> 31 << (j - i);
      bits[(begin + i) / 8] = static_cast<std::byte>(byte);
    }
  }
  return true;
}

bool quantize(std::span<const float> x, std::byte* out) {
  const std::size_t n = x.size(), full_blocks = n / kBlock;
  std::byte* scales = out;
  std::byte* bits = out + scale_bytes(n);
  std::size_t done = 0;
  if (const QuantizeBlocks blocks = fastest_blocks()) {
    if (!blocks(x.data(), full_blocks, scales, bits)) return false;
    done = full_blocks * kBlock;
  }
  return quantize_portable(x.data() + done, n - done, scales + done / kBlock * 2, bits + done / 8);
}

Status check(Bytes in, std::size_t n) {
  const auto bad = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "sign: " + what);
  };
  if (in.size() != bytes(n))
    return bad(std::to_string(in.size()) + " bytes, expected " + std::to_string(bytes(n)));
  for (std::size_t at = 0; at < scale_bytes(n); at += 2)
    if (load16(in.data() + at) > kLargestScale)
      return bad("scale of block " + std::to_string(at / 2) + " is negative or not finite");
  if (n % 8 != 0 && std::to_integer<unsigned>(in.back()) >> (n % 8) != 0)
    return bad("the bits after the last number are not zero");
  return {};
}

double squares(Bytes in, std::size_t n) {
  double sum = 0;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const auto scale = static_cast<double>(f32_from_bf16(load16(in.data() + 2 * (begin / kBlock))));
    sum += scale * scale * static_cast<double>(std::min(kBlock, n - begin));
  }
  return sum;
}

void dequantize(Bytes in, std::span<float> out) {
  const std::byte* bits = in.data() + scale_bytes(out.size());
  run_multiversioned<Dequantize<true>>(bits, in.data(), 1.0f, out.data(), out.size());
}

void dequantize_add(Bytes in, float weight, bool first, std::span<float> acc) {
  const std::byte* bits = in.data() + scale_bytes(acc.size());
  if (first)
    run_multiversioned<Dequantize<true>>(bits, in.data(), weight, acc.data(), acc.size());
  else
    run_multiversioned<Dequantize<false>>(bits, in.data(), weight, acc.data(), acc.size());
}

}  // namespace centroid::sign
