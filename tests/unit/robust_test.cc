#include "server/aggregate/robust.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/tensor/multiversion.h"

namespace centroid::server {
namespace {

using ::testing::HasSubstr;
using Rows = std::vector<std::vector<float>>;

AggregateRule rule(const std::string& text) { return AggregateRule::parse(text).value(); }

std::vector<float> combined(const std::string& text, const Rows& rows) {
  std::vector<const float*> addresses;
  for (const auto& row : rows) addresses.push_back(row.data());
  std::vector<float> out(rows[0].size(), -7.0f);
  RobustMean(rule(text)).combine(std::span<const float* const>(addresses), out);
  return out;
}

/// Numbers of many sizes, with ties and both zeros.
Rows random_rows(std::uint64_t seed, std::size_t count, std::size_t n) {
  CounterRng random(seed);
  Rows rows(count, std::vector<float>(n));
  for (auto& row : rows)
    for (float& x : row) {
      x = static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.below(20)) - 10));
      if (random.below(5) == 0) x = static_cast<float>(random.below(3)) - 1.0f;
      if (random.below(20) == 0) x = -0.0f;
    }
  return rows;
}

TEST(AggregateRule, ReadsWhatItPrintsAndNamesWhatItMayBe) {
  for (const std::string text : {"mean", "median", "trimmed_mean:1", "trimmed_mean:2047",
                                 "nnm_trimmed_mean:1", "nnm_trimmed_mean:2047"})
    EXPECT_EQ(rule(text).to_string(), text);
  EXPECT_TRUE(rule("mean").is_mean());
  for (const std::string text : {"", "means", "trimmed_mean", "median:1", "nnm_trimmed_mean"}) {
    const auto refused = AggregateRule::parse(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_THAT(refused.error().message(), HasSubstr("expected mean, median"));
  }
  for (const std::string text :
       {"trimmed_mean:", "trimmed_mean:0", "trimmed_mean:-1", "trimmed_mean:2048",
        "trimmed_mean:1x", "trimmed_mean: 1", "nnm_trimmed_mean:0", "nnm_trimmed_mean:2048"}) {
    const auto refused = AggregateRule::parse(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_THAT(refused.error().message(), HasSubstr("mean:F, F an integer from 1 to 2047"));
  }
}

TEST(AggregateRule, DropsAtBothEndsAndKeepsAtLeastTheMiddle) {
  EXPECT_EQ(rule("mean").dropped(9), 0u);
  EXPECT_EQ(rule("median").dropped(9), 4u);
  EXPECT_EQ(rule("median").dropped(8), 3u);
  EXPECT_EQ(rule("trimmed_mean:2").dropped(9), 2u);
  EXPECT_EQ(rule("trimmed_mean:2").dropped(4), 1u);
  EXPECT_EQ(rule("trimmed_mean:2").dropped(1), 0u);
  EXPECT_EQ(rule("mean").least(), 1u);
  EXPECT_EQ(rule("median").least(), 3u);
  EXPECT_EQ(rule("trimmed_mean:2").least(), 5u);
  EXPECT_EQ(rule("nnm_trimmed_mean:2").dropped(9), 2u);
  EXPECT_EQ(rule("nnm_trimmed_mean:2").dropped(4), 1u);
  EXPECT_EQ(rule("nnm_trimmed_mean:2").least(), 5u);
  EXPECT_EQ(rule("nnm_trimmed_mean:2").tolerated(9), 2u);
}

/// Knuth volume 3, theorem 5.3.4Z: what sorts zeros and ones sorts everything.
TEST(RobustMean, ItsNetworkPutsEveryKeptRankInItsPlace) {
  for (std::size_t n = 1; n <= 12; ++n)
    for (std::size_t first = 0; first < n; ++first)
      for (std::size_t last = first + 1; last <= n; ++last) {
        const auto pairs = RobustMean::network(n, first, last);
        for (unsigned bits = 0; bits < 1u << n; ++bits) {
          std::vector<int> x(n);
          for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<int>(bits >> i & 1);
          const auto zeros = static_cast<std::size_t>(std::ranges::count(x, 0));
          for (const auto& [low, high] : pairs)
            if (x[low] > x[high]) std::swap(x[low], x[high]);
          for (std::size_t i = first; i < last; ++i)
            ASSERT_EQ(x[i], i < zeros ? 0 : 1) << n << " rows, rank " << i << ", input " << bits;
        }
      }
  EXPECT_LT(RobustMean::network(9, 4, 5).size(), RobustMean::network(9, 0, 9).size());
}

TEST(RobustMean, IsTheMeanOfWhatIsLeftInDoublePrecision) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CounterRng random(seed, 1);
    const std::size_t count = 1 + random.below(21), n = 1 + random.below(200);
    const auto rows = random_rows(seed, count, n);
    for (const std::string text : {"median", "trimmed_mean:1", "trimmed_mean:4"}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(count) + " rows, " +
                   text);
      const auto got = combined(text, rows);
      const std::size_t dropped = rule(text).dropped(count);
      for (std::size_t i = 0; i < n; ++i) {
        std::vector<double> column;
        for (const auto& row : rows) column.push_back(static_cast<double>(row[i]));
        std::ranges::sort(column);
        const std::span<const double> kept =
            std::span(column).subspan(dropped, count - 2 * dropped);
        const double sum = std::accumulate(kept.begin(), kept.end(), 0.0);
        const double largest = std::max(std::abs(kept.front()), std::abs(kept.back()));
        ASSERT_NEAR(got[i], sum / static_cast<double>(kept.size()), 2e-7 * 11 * largest) << i;
        ASSERT_GE(got[i], kept.front());
        ASSERT_LE(got[i], kept.back());
      }
    }
  }
}

TEST(RobustMean, ItsBitsDependNeitherOnTheOrderOfRowsNorOnTheMachine) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng random(seed, 2);
    const std::size_t count = 2 + random.below(16);
    auto rows = random_rows(seed, count, 333);
    for (const std::string text : {"median", "trimmed_mean:2", "nnm_trimmed_mean:2"}) {
      const auto expected = combined(text, rows);
      for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
        for (std::size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
        const Isa before = limit_isa(isa);
        const auto got = combined(text, rows);
        limit_isa(before);
        ASSERT_EQ(0, std::memcmp(got.data(), expected.data(), 4 * got.size())) << to_string(isa);
      }
    }
  }
}

/// Worked by hand: 0 and 1 are mixed with each other and 3, 3 and 100 with the two below.
TEST(RobustMean, MixesEachRowWithItsNearest) {
  const Rows rows = {{0, 0}, {1, 0}, {3, 0}, {100, 0}};
  const auto got = combined("nnm_trimmed_mean:1", rows);
  EXPECT_FLOAT_EQ(got[0], 4.0f / 3);
  EXPECT_EQ(got[1], 0);
  // Far in one coordinate is far in all.
  EXPECT_EQ(combined("nnm_trimmed_mean:1", {{1, 1}, {2, 3}, {3, 2}, {2, 1e30f}})[0], 2);
}

TEST(RobustMean, WithEqualDistancesTheSmallerNumbersAreNearer) {
  for (const Rows& rows : {Rows{{-1}, {0}, {1}}, Rows{{1}, {0}, {-1}}, Rows{{0}, {1}, {-1}}})
    EXPECT_EQ(combined("nnm_trimmed_mean:1", rows)[0], -0.5f);  // of -0.5, -0.5 and 0.5
}

TEST(RobustMean, MixedRowsAreThoseOfDoublePrecision) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CounterRng random(seed, 4);
    const std::size_t count = 3 + random.below(12), n = 2 + random.below(3000);
    const std::size_t trim = 1 + random.below((count - 1) / 2), near = count - trim;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(count) + " rows, " +
                 std::to_string(trim) + " false");
    Rows rows(count, std::vector<float>(n));
    for (auto& row : rows)
      for (float& x : row) x = static_cast<float>(random.normal());
    Rows mixed(count, std::vector<float>(n));
    for (std::size_t r = 0; r < count; ++r) {
      std::vector<std::pair<double, std::size_t>> others;
      for (std::size_t s = 0; s < count; ++s) {
        double squares = 0;
        for (std::size_t i = 0; i < n; ++i) squares += std::pow(double{rows[r][i]} - rows[s][i], 2);
        others.emplace_back(squares, s);
      }
      std::ranges::sort(others);
      for (std::size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (std::size_t k = 0; k < near; ++k) sum += double{rows[others[k].second][i]};
        mixed[r][i] = static_cast<float>(sum / static_cast<double>(near));
      }
    }
    const auto got = combined("nnm_trimmed_mean:" + std::to_string(trim), rows);
    const auto expected = combined("trimmed_mean:" + std::to_string(trim), mixed);
    for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], expected[i], 1e-6) << i;
  }
}

TEST(RobustMean, SoManyFalseRowsMoveNothingBeyondTheOthers) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const float lies[] = {1e30f, -1e30f, kMost, -kMost, 0.0f, 1e-45f};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CounterRng random(seed, 3);
    const std::size_t count = 3 + random.below(12), n = 130;
    const std::size_t most = (count - 1) / 2, trim = 1 + random.below(most);
    auto rows = random_rows(seed, count, n);
    std::vector<float> low(n, kMost), high(n, -kMost);
    for (std::size_t r = trim; r < count; ++r)
      for (std::size_t i = 0; i < n; ++i) {
        low[i] = std::min(low[i], rows[r][i]);
        high[i] = std::max(high[i], rows[r][i]);
      }
    for (std::size_t r = 0; r < trim; ++r)
      for (float& x : rows[r]) x = lies[random.below(std::size(lies))];
    for (std::size_t r = count; r > 1; --r) std::swap(rows[r - 1], rows[random.below(r)]);
    const std::string trimmed = "trimmed_mean:" + std::to_string(trim);
    for (const std::string& text : {trimmed, std::string("median")}) {
      const auto got = combined(text, rows);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_GE(got[i], low[i]) << text;
        ASSERT_LE(got[i], high[i]) << text;
      }
    }
  }
}

TEST(RobustMean, TheLargestAndTheSmallestNumbersNeitherOverflowNorVanish) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  for (const std::string text : {"median", "trimmed_mean:1", "nnm_trimmed_mean:1"})
    for (const float value : {kMost, -kMost, kLeast})
      for (std::size_t count = 3; count <= 9; ++count)
        EXPECT_THAT(combined(text, Rows(count, std::vector<float>(70, value))),
                    ::testing::Each(value))
            << text << ' ' << count;
  // Distances that a float cannot have: 1 is 2 from -1, which is left out of its mean.
  const Rows apart = {{kMost}, {-0.5f * kMost}, {-kMost}, {-0.6f * kMost}, {kMost}};
  EXPECT_NEAR(combined("nnm_trimmed_mean:1", apart)[0] / kMost, -0.325 / 3, 1e-6);
}

TEST(RobustMean, WhatIsOverEndsBeforeTheFirstBlock) {
  const std::atomic<bool> is_over = true;
  const Rows rows = random_rows(1, 5, 512);
  std::vector<const float*> addresses;
  for (const auto& row : rows) addresses.push_back(row.data());
  for (const char* const text : {"median", "nnm_trimmed_mean:1"}) {
    std::vector<float> out(rows[0].size(), -7.0f);
    RobustMean(rule(text)).combine(std::span<const float* const>(addresses), out, is_over);
    EXPECT_EQ(std::ranges::count(out, -7.0f), std::ssize(out)) << text;
  }
}

TEST(RobustMean, TakesPayloadsOfDifferentCodecs) {
  const std::size_t n = 300;
  const auto rows = random_rows(5, 5, n);
  Rows decoded;
  std::vector<std::unique_ptr<Codec>> codecs;
  std::vector<std::vector<std::byte>> payloads;
  for (const char* spec : {"f32", "int8", "sign", "bf16", "f32"}) {
    codecs.push_back(make_codec(spec).value());
    // One of the floats stands where no float may.
    std::vector<std::byte> bytes(codecs.back()->max_bytes(n) + 1);
    const std::size_t at = payloads.size() == 4 ? 1 : 0;
    const auto& row = rows[payloads.size()];
    const std::size_t size = codecs.back()->encode(row, std::span(bytes).subspan(at)).value();
    bytes.resize(at + size);
    decoded.emplace_back(n);
    ASSERT_TRUE(codecs.back()->decode(Bytes(bytes).subspan(at), decoded.back()).ok());
    payloads.push_back(std::move(bytes));
  }
  std::vector<RobustMean::Encoded> encoded;
  for (std::size_t r = 0; r < payloads.size(); ++r)
    encoded.push_back({codecs[r].get(), Bytes(payloads[r]).subspan(r == 4 ? 1 : 0)});
  std::vector<float> out(n);
  RobustMean(rule("median")).combine(std::span<const RobustMean::Encoded>(encoded), out);
  EXPECT_EQ(out, combined("median", decoded));
}

}  // namespace
}  // namespace centroid::server
