#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace centroid::topk {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;  ///< all bits but the sign
constexpr std::uint32_t kInfinity = 0x7F800000u;
/// Elements per call: 8 KiB stay in the first-level cache while their masks are read again.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kWords = kBlock / 64;
/// Floats between prefetch and load: more than a block, so that memory is busy while masks are
/// expanded (a fifth faster than half a block, measured with 25 M numbers).
constexpr std::size_t kAhead = 3 * kBlock / 2;
/// `expand` may write this many elements after the last valid index.
constexpr std::size_t kSlack = 64;

/// The order of magnitudes: integers compare alike on every machine, and NaN is above infinity.
constexpr std::uint32_t key_of(float x) { return std::bit_cast<std::uint32_t>(x) & kMagnitude; }

/// The loops of top-k for one instruction set. Bit i % 64 of word i / 64 is element i; bits past n
/// are 0. n <= kBlock.
struct Kernels {
  std::string_view name;
  /// masks: key_of(x[i]) >= threshold; threshold >= 1.
  void (*mark)(const float* x, std::size_t n, std::uint32_t threshold, std::uint64_t* masks);
  /// e[i] += g[i], then as `mark` of e. Stops before the first group of 64 (of fewer at the end)
  /// with a sum that is not finite, which then is untouched; returns the elements done.
  std::size_t (*add_and_mark)(const float* g, float* e, std::size_t n, std::uint32_t threshold,
                              std::uint64_t* masks);
  /// Write base + i for every set bit, ascending; returns how many. Writes up to kSlack more.
  std::size_t (*expand)(const std::uint64_t* masks, std::size_t words, std::uint32_t base,
                        std::uint32_t* out);
};

/// The widest set that `active_isa` and the machine allow.
const Kernels& kernels();
/// All that this machine can run, the portable one first. For tests.
std::span<const Kernels* const> runnable_kernels();

namespace internal {
extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAvx512Vbmi2;
#elif defined(__aarch64__)
extern const Kernels kNeon;
#endif
}  // namespace internal

}  // namespace centroid::topk
