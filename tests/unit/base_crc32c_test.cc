#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/crc32c_join.h"
#include "common/base/random.h"

namespace centroid {
namespace {

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  CounterRng rng(seed);
  std::vector<std::byte> out(n);
  for (auto& byte : out) byte = static_cast<std::byte>(rng.next());
  return out;
}

// source  RFC 3720, appendix B.4
TEST(Crc32c, AgreesWithTheVectorsOfRfc3720) {
  std::array<std::byte, 32> zeros{};
  std::array<std::byte, 32> ones{};
  std::array<std::byte, 32> rising{};
  std::array<std::byte, 32> falling{};
  for (std::size_t i = 0; i < 32; ++i) {
    ones[i] = std::byte{0xFF};
    rising[i] = static_cast<std::byte>(i);
    falling[i] = static_cast<std::byte>(31 - i);
  }
  constexpr std::array<unsigned char, 48> kScsiRead = {
      0x01, 0xc0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  for (const auto& function : {crc32c, crc32c_portable}) {
    EXPECT_EQ(function(zeros, 0), 0x8A9136AAU);
    EXPECT_EQ(function(ones, 0), 0x62A8AB43U);
    EXPECT_EQ(function(rising, 0), 0x46DD794EU);
    EXPECT_EQ(function(falling, 0), 0x113FDB5CU);
    EXPECT_EQ(function(std::as_bytes(std::span(kScsiRead)), 0), 0xD9963A56U);
    EXPECT_EQ(function(as_bytes("123456789"), 0), 0xE3069283U);
    EXPECT_EQ(function({}, 0), 0U);
    EXPECT_EQ(function({}, 0x12345678), 0x12345678U);
  }
}

TEST(Crc32c, HardwareEqualsPortableForEveryLengthAndAlignment) {
  const auto data = random_bytes(70'000, 1);
  const Bytes all(data);
  // Every length around the borders of the interleaved parts (3 x 256 and 3 x 4096), any start.
  for (const std::size_t base :
       {std::size_t{0}, std::size_t{768}, std::size_t{1536}, std::size_t{12'288},
        std::size_t{12'288 + 768}, std::size_t{5 * 12'288}})
    for (std::size_t extra = 0; extra < 40; ++extra) {
      const std::size_t n = base < 20 ? extra : base + extra - 20;
      const Bytes part = all.subspan(extra % 17, n);
      ASSERT_EQ(crc32c(part), crc32c_portable(part)) << "length " << n;
    }
}

TEST(Crc32c, ContinuesFromAnySplit) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE("seed 7");
  CounterRng rng(kSeed);
  const auto data = random_bytes(50'000, kSeed);
  for (int i = 0; i < 200; ++i) {
    const Bytes all = Bytes(data).subspan(rng.below(64), rng.below(49'000));
    const std::size_t cut = rng.below(all.size() + 1);
    ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c_portable(all))
        << "length " << all.size() << " cut " << cut;
  }
}

TEST(Crc32c, JoinsTheSumsOfTwoParts) {
  SCOPED_TRACE("seed 8");
  CounterRng rng(8);
  const auto data = random_bytes(50'000, 8);
  for (int i = 0; i < 200; ++i) {
    const Bytes all = Bytes(data).subspan(rng.below(64), rng.below(49'000));
    const std::size_t cut = i == 0 ? 0 : i == 1 ? all.size() : rng.below(all.size() + 1);
    const Bytes a = all.first(cut), b = all.subspan(cut);
    ASSERT_EQ(crc32c_join(crc32c(a), crc32c(b), b.size()), crc32c(all)) << all.size() << " " << cut;
  }
}

TEST(Crc32c, SeesEverySingleFlippedBit) {
  auto data = random_bytes(1000, 3);
  const auto right = crc32c(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); bit += 3) {
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_NE(crc32c(data), right);
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace centroid
