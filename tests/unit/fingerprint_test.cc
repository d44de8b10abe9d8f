#include "common/tensor/fingerprint.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid {
namespace {

std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  CounterRng rng(seed);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(rng.normal());
  return values;
}

// Computed from the docstring's definition by an independent program: every node and every release
// must give the same number for the same bits.
TEST(Fingerprint, HasGoldenValues) {
  EXPECT_EQ(fingerprint({}), 0x7C0F8CFB3D4D8F0DULL);
  const std::vector<float> values{1.0f, -2.0f, 0.5f};
  EXPECT_EQ(fingerprint(values), 0x340640CDE3A70F36ULL);
  EXPECT_EQ(fingerprint(values, 7), 0xA20698F11A67063AULL);
  std::vector<float> quarters(1001);
  for (std::size_t i = 0; i < quarters.size(); ++i) quarters[i] = static_cast<float>(i) * 0.25f;
  EXPECT_EQ(fingerprint(quarters), 0x4D12696EC9906385ULL);
}

TEST(Fingerprint, ChangesWithEveryBitOfEveryElement) {
  for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 35u}) {
    std::vector<float> values = random_values(n, n);
    std::set<std::uint64_t> seen{fingerprint(values)};
    for (float& x : values) {
      const float before = x;
      for (std::uint32_t bit = 0; bit < 32; ++bit) {
        x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(before) ^ (1u << bit));
        EXPECT_TRUE(seen.insert(fingerprint(values)).second) << "n " << n << ", bit " << bit;
      }
      x = before;
    }
  }
}

TEST(Fingerprint, ChangesWithOrderLengthAndSeed) {
  std::vector<float> values = random_values(64, 1);
  std::set<std::uint64_t> seen{fingerprint(values), fingerprint(values, 1)};
  for (std::size_t i = 1; i < values.size(); ++i) {
    std::swap(values[0], values[i]);
    EXPECT_TRUE(seen.insert(fingerprint(values)).second) << "swapped 0 and " << i;
    std::swap(values[0], values[i]);
  }
  const std::vector<float> zeros(40);
  for (std::size_t n = 0; n <= zeros.size(); ++n)
    EXPECT_TRUE(seen.insert(fingerprint(std::span(zeros).first(n))).second) << n << " zeros";
}

TEST(Fingerprint, DoesNotDependOnAlignment) {
  const std::vector<float> values = random_values(501, 9);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::vector<float> shifted(values.size() + shift);
    std::copy(values.begin(), values.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(fingerprint(std::span(shifted).subspan(shift)), fingerprint(values)) << shift;
  }
}

}  // namespace
}  // namespace centroid
