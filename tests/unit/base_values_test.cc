#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/base/result.h"
#include "common/base/scalars.h"

namespace centroid {
namespace {

// The order of training data hangs on these: a change here changes every run.
// source  mix64(0) is the first output of SplitMix64 from seed 0 (Vigna's splitmix64.c)
TEST(Random, KnownAnswersStay) {
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFULL);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15ULL), 0x6E789E6AA1B965F4ULL);
  EXPECT_EQ(mix64(1), 0x910A2DEC89025CC1ULL);
  EXPECT_EQ(mix64(1, 2), mix64(mix64(1) ^ 2));
}

TEST(Random, BelowHasNoModuloBias) {
  // For n = 3 * 2^62 plain modulo would give the lowest third twice as often as the rest.
  constexpr std::uint64_t kN = 3ULL << 62;
  CounterRng rng(5);
  int low = 0;
  constexpr int kDraws = 30'000;
  for (int i = 0; i < kDraws; ++i) low += rng.below(kN) < (kN / 3) ? 1 : 0;
  EXPECT_NEAR(low, kDraws / 3, 400);  // 5 standard deviations; biased: 15000
}

TEST(Random, BelowReachesEveryValueAndNoOther) {
  CounterRng rng(9);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts.at(rng.below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(rng.below(1), 0U);
  for (int i = 0; i < 100; ++i)
    EXPECT_LT(rng.below(std::numeric_limits<std::uint64_t>::max()),
              std::numeric_limits<std::uint64_t>::max());
}

TEST(Random, StreamsRepeatAndDiffer) {
  CounterRng first(1, 2);
  CounterRng same(1, 2);
  CounterRng other(1, 3);
  for (int i = 0; i < 100; ++i) {
    const auto value = first.next();
    ASSERT_EQ(value, same.next());
    ASSERT_NE(value, other.next());
  }
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  CounterRng rng(3);
  constexpr int kDraws = 50'000;
  double uniform = 0;
  double normal = 0;
  double square = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    const double z = rng.normal();
    ASSERT_TRUE(std::isfinite(z));
    uniform += u;
    normal += z;
    square += z * z;
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.01);
  EXPECT_NEAR(normal / kDraws, 0, 0.03);
  EXPECT_NEAR(square / kDraws, 1, 0.04);
}

TEST(Bytes, WhatIsWrittenIsRead) {
  ByteWriter writer;
  writer.put(std::uint16_t{0x0102});
  writer.put(ErrorCode::kAborted);
  writer.put(-1.5);
  writer.put_string("hello");
  const auto bytes = writer.take();
  EXPECT_EQ(bytes[0], std::byte{0x02});  // little-endian
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint16_t>(), 0x0102);
  EXPECT_EQ(reader.get<ErrorCode>(), ErrorCode::kAborted);
  EXPECT_EQ(reader.get<double>(), -1.5);
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.get_string(5), "hello");
  EXPECT_TRUE(reader.done());
}

TEST(Bytes, EveryTruncationIsNoticedAndNothingIsReadBeyond) {
  ByteWriter writer;
  writer.put(std::uint32_t{7});
  writer.put_string("abc");
  const auto bytes = writer.take();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    ByteReader reader(cut);
    (void)reader.get<std::uint32_t>();
    EXPECT_EQ(reader.get_string(100), "");
    EXPECT_FALSE(reader.ok()) << n;
    EXPECT_EQ(reader.get<std::uint64_t>(), 0U);
  }
}

TEST(Bytes, AStringOverTheLimitIsAFailure) {
  ByteWriter writer;
  writer.put_string("toolong");
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.get_string(6), "");
  EXPECT_FALSE(reader.ok());
}

Result<int> half(int value) {
  if (value % 2 != 0) return Error(ErrorCode::kInvalidArgument, "odd");
  return value / 2;
}

Result<int> quarter(int value) {
  CENTROID_ASSIGN(const int once, half(value));
  CENTROID_TRY(half(once));
  return half(once);
}

TEST(Result, MacrosPassValuesAndErrors) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message(), "odd");
  EXPECT_EQ(quarter(3).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Result, ContextGoesInFront) {
  const Error error = Error(ErrorCode::kUnavailable, "reset").with_context("push chunk 17");
  EXPECT_EQ(error.to_string(), "unavailable: push chunk 17: reset");
  EXPECT_GT(error.where().line(), 0U);
}

TEST(ResultDeathTest, ABrokenInvariantAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(CENTROID_CHECK(1 + 1 == 3), "CENTROID_CHECK failed: 1 \\+ 1 == 3");
}

TEST(Ids, CompareAndHash) {
  EXPECT_LT(Round(1), Round(1).next());
  EXPECT_EQ(to_string(Rank(4)), "4");
  EXPECT_EQ(std::hash<Round>()(Round(3)), std::hash<Round>()(Round(3)));
}

TEST(Clock, ManualTimeMovesOnlyWhenTold) {
  ManualClock clock;
  const auto before = clock.now();
  EXPECT_EQ(clock.now(), before);
  clock.advance(std::chrono::seconds(3));
  EXPECT_EQ(clock.now() - before, std::chrono::seconds(3));
}

TEST(Scalars, AreMeansOfBoundedNames) {
  Scalars one, other;
  EXPECT_TRUE(one.is_empty());
  for (const double value : {1.0, 2.0, 6.0}) EXPECT_TRUE(one.record("eval/ppl-1.x", value).ok());
  EXPECT_EQ(one.all().at("eval/ppl-1.x"), (Scalars::Sum{9, 3}));
  EXPECT_EQ(one.all().at("eval/ppl-1.x").mean(), 3);
  EXPECT_EQ(Scalars::Sum().mean(), 0);
  for (const char* const bad : {"", "1a", "-a", "a b", "a\n", "\xc3\xa4"})
    EXPECT_EQ(one.record(bad, 1).error().code(), ErrorCode::kInvalidArgument) << bad;
  EXPECT_TRUE(one.record(std::string(64, 'a'), 1).ok());
  EXPECT_FALSE(one.record(std::string(65, 'a'), 1).ok());
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e301})
    EXPECT_EQ(one.record("x", bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  for (int i = 2; i < 16; ++i) EXPECT_TRUE(one.record("s" + std::to_string(i), i).ok());
  EXPECT_EQ(one.record("s16", 1).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(one.record("s15", 1).ok());  // a known one
  EXPECT_TRUE(other.record("a", 5).ok());
  EXPECT_TRUE(other.record("s2", 4).ok());
  one.add(other);  // `a` finds no room
  EXPECT_EQ(one.all().size(), 16u);
  EXPECT_EQ(one.all().at("s2").mean(), 3);
  for (int i = 0; i < 3; ++i) other.add("a", {Scalars::kMaxSum, 1});
  EXPECT_EQ(other.all().at("a").sum, Scalars::kMaxSum);
}

}  // namespace
}  // namespace centroid
