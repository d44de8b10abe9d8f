#pragma once

#include <cstdint>

#include "common/codec/spec.h"

namespace centroid {

/// The selected share of top-k after this many rounds: during the warm-up a quarter, a quarter of
/// that, and so on. Never more than in the first round.
/// source  Lin et al. 2018, "Deep Gradient Compression", section 3.3
inline KeepRatio ratio_after(const CodecSpec& spec, std::uint64_t rounds) {
  constexpr std::uint32_t kFirst = 250'000'000;
  if (rounds >= spec.feedback.warmup) return spec.ratio;
  std::uint64_t stages = 0;
  while (kFirst >> (2 * stages) > spec.ratio.billionths) ++stages;
  if (stages == 0) return spec.ratio;
  return {kFirst >> (2 * (rounds * stages / spec.feedback.warmup))};
}

}  // namespace centroid
