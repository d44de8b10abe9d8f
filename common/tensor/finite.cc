#include "common/tensor/finite.h"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/tensor/multiversion.h"

namespace centroid {

namespace {

/// Whether the bits of a magnitude are `limit` or more.
struct Reaches {
  CENTROID_KERNEL void run(const float* values, std::size_t n, std::uint32_t limit, bool* found) {
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < n; ++i)
      bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu) >=
                                        limit);
    *found = bad != 0;
  }
};

bool is_below(std::span<const float> values, std::uint32_t limit) {
  bool reaches = false;
  run_multiversioned<Reaches>(values.data(), values.size(), limit, &reaches);
  return !reaches;
}

}  // namespace

bool is_finite(std::span<const float> values) { return is_below(values, 0x7F800000u); }

bool is_moderate(std::span<const float> values) { return is_below(values, 0x4F800000u); }

Magnitude magnitude_of(std::span<const float> values) {
  if (is_moderate(values)) return Magnitude::kModerate;
  return is_finite(values) ? Magnitude::kLarge : Magnitude::kInfinite;
}

}  // namespace centroid
