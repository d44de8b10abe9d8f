#include "common/tensor/finite.h"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/tensor/multiversion.h"

namespace centroid {

namespace {

struct HasNonFinite {
  CENTROID_KERNEL void run(const float* values, std::size_t n, bool* found) {
    constexpr std::uint32_t kExponent = 0x7F800000u;
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < n; ++i)
      bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i]) & kExponent) ==
                                        kExponent);
    *found = bad != 0;
  }
};

}  // namespace

bool is_finite(std::span<const float> values) {
  bool has_bad = false;
  run_multiversioned<HasNonFinite>(values.data(), values.size(), &has_bad);
  return !has_bad;
}

}  // namespace centroid
