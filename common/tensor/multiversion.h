#pragma once

#include <cstdint>
#include <string_view>

namespace centroid {

/// Instruction sets of the loops; the program chooses one at run time. Every aarch64 machine has
/// NEON, and compilers use it in all loops: there `kBaseline` only means loops without hand-written
/// NEON.
enum class Isa : std::uint8_t { kBaseline, kNeon, kAvx2, kAvx512 };

std::string_view to_string(Isa isa);
Isa best_isa();    ///< of this machine
Isa active_isa();  ///< what `run_multiversioned` uses

/// Use at most `isa`, of those that the machine has; returns the previous one. For tests that
/// compare the variants.
Isa limit_isa(Isa isa);

/// Put on a kernel's `run`: its body must be inside each variant to be compiled for it.
#define CENTROID_KERNEL [[gnu::always_inline]] static inline

/// Put before a loop whose iterations are independent, although pointers may be equal.
#if defined(__clang__)
#define CENTROID_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CENTROID_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace internal {
#if defined(__x86_64__)
template <class Kernel, class... Args>
[[gnu::target("avx2")]] void run_avx2(Args... args) {
  Kernel::run(args...);
}
template <class Kernel, class... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void run_avx512(Args... args) {
  Kernel::run(args...);
}
#endif
}  // namespace internal

/// Call `Kernel::run(args...)` in the widest variant of this machine. All variants compute the same
/// bits, because kernels have only element-wise IEEE operations and contraction is off. Not by
/// ifunc, which breaks under sanitizers.
template <class Kernel, class... Args>
void run_multiversioned(Args... args) {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kAvx512:
      return internal::run_avx512<Kernel>(args...);
    case Isa::kAvx2:
      return internal::run_avx2<Kernel>(args...);
    default:
      break;
  }
#endif
  Kernel::run(args...);
}

}  // namespace centroid
