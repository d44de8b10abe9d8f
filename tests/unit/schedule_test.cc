#include "common/optim/schedule.h"

#include <cmath>
#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

using ::testing::HasSubstr;

LearningRateSchedule parsed(const std::string& text) {
  auto schedule = LearningRateSchedule::parse(text);
  EXPECT_TRUE(schedule.ok()) << (schedule.ok() ? "" : schedule.error().message());
  return schedule.ok() ? *schedule : LearningRateSchedule();
}

constexpr double kPi = 3.14159265358979323846;

TEST(Schedule, FollowsItsFormulasRoundByRound) {
  const auto same = [](const std::string& text, double (*expected)(int)) {
    const auto schedule = parsed(text);
    for (int t = 1; t <= 1200; ++t)
      ASSERT_NEAR(schedule.factor(static_cast<std::uint64_t>(t)), expected(t), 1e-12)
          << text << " at round " << t;
  };
  same("constant", [](int) { return 1.0; });
  same("constant:warmup=50", [](int t) { return std::min(1.0, t / 50.0); });
  same("step:every=300", [](int t) { return std::pow(0.1, (t - 1) / 300); });
  same("step:every=100,factor=0.5,warmup=10,floor=0.01",
       [](int t) { return t <= 10 ? t / 10.0 : std::max(0.01, std::pow(0.5, (t - 11) / 100)); });
  same("linear:rounds=1000", [](int t) { return std::max(0.0, 1 - (t - 1) / 1000.0); });
  same("cosine:rounds=1000,warmup=50,floor=0.1", [](int t) {
    if (t <= 50) return t / 50.0;
    const double x = t > 1000 ? 1.0 : (t - 51) / 950.0;
    return 0.1 + 0.9 * (0.5 + 0.5 * std::cos(kPi * x));
  });
  // torch.optim.lr_scheduler.OneCycleLR(total_steps=1000, pct_start=0.3, div_factor=25,
  // final_div_factor=1e4): from 1/25 up to 1 in round 300, then to 1/250000.
  same("onecycle:rounds=1000", [](int t) {
    const double e = std::min(t - 1, 999);
    if (e <= 299) return 1 + (1 / 25.0 - 1) / 2 * (1 + std::cos(kPi * e / 299));
    return 1 / 250000.0 + (1 - 1 / 250000.0) / 2 * (1 + std::cos(kPi * (e - 299) / 700));
  });
}

TEST(Schedule, StartsPeaksAndEndsWhereItSays) {
  const auto cycle = parsed("onecycle:rounds=100,rise=0.25,start=0.1,floor=0.01");
  EXPECT_DOUBLE_EQ(cycle.factor(1), 0.1);
  EXPECT_DOUBLE_EQ(cycle.factor(25), 1);
  EXPECT_DOUBLE_EQ(cycle.factor(100), 0.01);
  EXPECT_DOUBLE_EQ(cycle.factor(5000), 0.01);
  EXPECT_DOUBLE_EQ(parsed("cosine:rounds=10,floor=0.5").factor(11), 0.5);
  EXPECT_DOUBLE_EQ(parsed("linear:rounds=4,warmup=2").factor(2), 1);
  EXPECT_DOUBLE_EQ(parsed("linear:rounds=4,warmup=2").factor(4), 0.5);
}

TEST(Schedule, WhatIsWrongIsNamed) {
  const auto message = [](const std::string& text) {
    const auto schedule = LearningRateSchedule::parse(text);
    EXPECT_FALSE(schedule.ok()) << text;
    return schedule.ok() ? std::string() : schedule.error().message();
  };
  EXPECT_THAT(message("exponential"), HasSubstr("constant, step, linear, cosine or onecycle"));
  EXPECT_THAT(message(""), HasSubstr("the name is not"));
  EXPECT_THAT(message("cosine"), HasSubstr("\"rounds\" is missing"));
  EXPECT_THAT(message("step"), HasSubstr("\"every\" is missing"));
  EXPECT_THAT(message("cosine:rounds=0"), HasSubstr("integer, at least 1"));
  EXPECT_THAT(message("cosine:rounds=1.5"), HasSubstr("integer"));
  EXPECT_THAT(message("cosine:rounds=nan"), HasSubstr("integer"));
  EXPECT_THAT(message("cosine:rounds=10,floor=2"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(message("cosine:rounds=10,rounds=11"), HasSubstr("appears twice"));
  EXPECT_THAT(message("cosine:rounds=10,every=3"), HasSubstr("cosine takes rounds, warmup, floor"));
  EXPECT_THAT(message("cosine:rounds=10,"), HasSubstr("not field=value"));
  EXPECT_THAT(message("cosine:rounds=10,warmup=10"), HasSubstr("below rounds"));
  EXPECT_THAT(message("step:every=3,factor=1"), HasSubstr("above 0 and below 1"));
  EXPECT_THAT(message("onecycle:rounds=3,rise=0.3"), HasSubstr("more than one round"));
}

TEST(PlaneNorm, GivesTheSameBitsHoweverThePlaneIsCut) {
  constexpr std::uint64_t kSeed = 11;
  CounterRng rng(kSeed, 1);
  std::vector<float> plane(5003);
  for (float& x : plane) x = static_cast<float>(rng.normal());
  long double sum = 0;
  for (const float x : plane) sum += static_cast<long double>(x) * static_cast<long double>(x);
  PlaneNorm whole;
  whole.add(0, plane);
  EXPECT_NEAR(whole.value(), static_cast<double>(std::sqrt(sum)), 1e-12 * whole.value());
  const Isa before = limit_isa(Isa::kBaseline);
  for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    limit_isa(isa);
    for (int turn = 0; turn < 20; ++turn) {
      PlaneNorm cut;
      for (std::size_t at = 0; at < plane.size();) {
        const std::size_t n = std::min<std::size_t>(1 + rng.next() % 700, plane.size() - at);
        cut.add(at, std::span(plane).subspan(at, n));
        at += n;
      }
      EXPECT_EQ(cut.value(), whole.value()) << "seed " << kSeed << ", turn " << turn;
    }
  }
  limit_isa(before);
}

TEST(PlaneNorm, FewNumbersGiveTheBitsOfThePlaneWithZeros) {
  CounterRng rng(12, 1);
  std::vector<float> plane(5003, 0.0f), values;
  std::vector<std::uint32_t> index;
  for (std::uint32_t i = 0; i < plane.size();
       i += 1 + static_cast<std::uint32_t>(rng.next() % 90)) {
    index.push_back(i);
    values.push_back(static_cast<float>(rng.normal()));
    plane[i] = values.back();
  }
  PlaneNorm whole, listed;
  whole.add(7, plane);
  listed.add(7, index, values);
  EXPECT_EQ(listed.value(), whole.value());
}

TEST(PlaneNorm, ChunksSummedElsewhereGiveTheSameBits) {
  CounterRng rng(13, 1);
  std::vector<float> plane(5003);
  for (float& x : plane) x = static_cast<float>(rng.normal());
  PlaneNorm whole, spread, uncut;
  uncut.add(0, plane);
  for (std::size_t at = 0; at < plane.size(); at += 1000) {
    const auto chunk = std::span(plane).subspan(at, std::min<std::size_t>(1000, plane.size() - at));
    whole.add(at, chunk);
    whole.end_chunk();
    PlaneNorm elsewhere;
    elsewhere.add(at, chunk);
    spread.add_chunk(elsewhere.end_chunk());
  }
  EXPECT_EQ(spread.value(), whole.value());
  EXPECT_NEAR(spread.value(), uncut.value(), 1e-12 * uncut.value());
}

TEST(PlaneNorm, ClippingBringsTheNormToTheBoundAndLeavesTheRest) {
  EXPECT_EQ(clip_factor(10, 0), 1);
  EXPECT_EQ(clip_factor(10, 10), 1);
  EXPECT_EQ(clip_factor(10, 2.5), 0.25f);
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(HUGE_VAL, 1), 1);  // NaN and infinity are another setting's business
  EXPECT_EQ(clip_factor(std::nan(""), 1), 1);
}

}  // namespace
}  // namespace centroid
