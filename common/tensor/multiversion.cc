#include "common/tensor/multiversion.h"

#include <algorithm>
#include <atomic>

namespace centroid {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2")) return Isa::kAvx2;
#elif defined(__aarch64__)
  return Isa::kNeon;
#endif
  return Isa::kBaseline;
}

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kNeon:
      return "neon";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa active_isa() { return active().load(std::memory_order_relaxed); }

Isa limit_isa(Isa isa) {
  if (isa == Isa::kNeon && best_isa() != Isa::kNeon) isa = Isa::kBaseline;
  return active().exchange(std::min(isa, best_isa()));
}

}  // namespace centroid
