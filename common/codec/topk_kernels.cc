#include "common/codec/topk_kernels.h"

#include <array>
#include <cstring>
#include <vector>

#include "common/tensor/multiversion.h"

namespace centroid::topk {
namespace {

// One byte per element, which vectorises; then a multiplication packs eight bytes of 0 or 1 into
// eight bits. No branches, because the passing elements are unpredictable.
std::uint64_t mask_of_64(const float* x, std::int32_t below) {
  std::array<std::uint8_t, 64> passes;
  for (std::size_t j = 0; j < 64; ++j)
    passes[j] = static_cast<std::int32_t>(key_of(x[j])) > below ? 1 : 0;
  std::uint64_t mask = 0;
  for (std::size_t j = 0; j < 64; j += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, &passes[j], sizeof eight);
    mask |= (eight * 0x0102040810204080u >> 56) << j;
  }
  return mask;
}

std::uint64_t mask_of(const float* x, std::size_t n, std::int32_t below) {
  std::uint64_t mask = 0;
  for (std::size_t j = 0; j < n; ++j)
    mask |= static_cast<std::uint64_t>(static_cast<std::int32_t>(key_of(x[j])) > below) << j;
  return mask;
}

void mark(const float* x, std::size_t n, std::uint32_t threshold, std::uint64_t* masks) {
  const auto below = static_cast<std::int32_t>(threshold - 1);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (std::size_t j = 0; j < 64; j += 16) __builtin_prefetch(x + i + j + kAhead);
    masks[i / 64] = mask_of_64(x + i, below);
  }
  if (i < n) masks[i / 64] = mask_of(x + i, n - i, below);
}

std::size_t add_and_mark(const float* g, float* e, std::size_t n, std::uint32_t threshold,
                         std::uint64_t* masks) {
  const auto below = static_cast<std::int32_t>(threshold - 1);
  constexpr auto kFinite = static_cast<std::int32_t>(kInfinity - 1);
  std::array<float, 64> sums{};
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    std::int32_t bad = 0;  // negative when a sum is not finite
    for (std::size_t j = 0; j < 64; ++j) {
      sums[j] = e[i + j] + g[i + j];
      bad |= kFinite - static_cast<std::int32_t>(key_of(sums[j]));
    }
    if (bad < 0) return i;
    for (std::size_t j = 0; j < 64; ++j) e[i + j] = sums[j];
    masks[i / 64] = mask_of_64(sums.data(), below);
  }
  if (i == n) return n;
  for (std::size_t j = 0; j < n - i; ++j) sums[j] = e[i + j] + g[i + j];
  if (mask_of(sums.data(), n - i, kFinite) != 0) return i;
  for (std::size_t j = 0; j < n - i; ++j) e[i + j] = sums[j];
  masks[i / 64] = mask_of(sums.data(), n - i, below);
  return n;
}

// Usually few bits are set: three are written unconditionally, so that no branch depends on their
// number.
std::size_t expand_by_bits(const std::uint64_t* masks, std::size_t words, std::uint32_t base,
                           std::uint32_t* out) {
  std::uint32_t* to = out;
  for (std::size_t w = 0; w < words; ++w, base += 64) {
    std::uint64_t mask = masks[w];
    const auto count = static_cast<std::size_t>(std::popcount(mask));
    for (std::size_t j = 0; j < 3; ++j) {
      to[j] = base + static_cast<std::uint32_t>(std::countr_zero(mask));
      mask &= mask - 1;
    }
    for (std::size_t j = 3; j < count; ++j) {
      to[j] = base + static_cast<std::uint32_t>(std::countr_zero(mask));
      mask &= mask - 1;
    }
    to += count;
  }
  return static_cast<std::size_t>(to - out);
}

}  // namespace

namespace internal {
const Kernels kPortable{"portable", mark, add_and_mark, expand_by_bits};
}  // namespace internal

namespace {

#if defined(__x86_64__)
bool has_vbmi2() {
  return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("popcnt");
}
bool has_bmi() { return __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt"); }
#endif

std::vector<const Kernels*> find_runnable() {
  std::vector<const Kernels*> all{&internal::kPortable};
#if defined(__x86_64__)
  if (best_isa() >= Isa::kAvx2 && has_bmi()) all.push_back(&internal::kAvx2);
  if (best_isa() >= Isa::kAvx512 && has_bmi()) all.push_back(&internal::kAvx512);
  if (best_isa() >= Isa::kAvx512 && has_vbmi2()) all.push_back(&internal::kAvx512Vbmi2);
#elif defined(__aarch64__)
  all.push_back(&internal::kNeon);
#endif
  return all;
}

}  // namespace

std::span<const Kernels* const> runnable_kernels() {
  static const std::vector<const Kernels*> all = find_runnable();
  return all;
}

const Kernels& kernels() {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kAvx512: {
      static const Kernels& best = *runnable_kernels().back();
      return best;
    }
    case Isa::kAvx2: {
      static const Kernels& best = has_bmi() ? internal::kAvx2 : internal::kPortable;
      return best;
    }
    default:
      break;
  }
#elif defined(__aarch64__)
  if (active_isa() == Isa::kNeon) return internal::kNeon;
#endif
  return internal::kPortable;
}

}  // namespace centroid::topk
