#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/codec/index_code.h"
#include "common/codec/payload.h"
#include "common/codec/sign.h"
#include "common/tensor/multiversion.h"
#include "common/tensor/squares.h"

namespace centroid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 77;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> encoded(const std::string& spec, std::span<const float> x,
                               std::uint64_t stream = 0) {
  const auto codec = make_codec(spec).value();
  std::vector<std::byte> out(codec->max_bytes(x.size()));
  out.resize(codec->encode(x, out, stream).value());
  return out;
}

std::vector<float> decoded(const std::string& spec, Bytes in, std::size_t n) {
  std::vector<float> out(n, -7.0f);
  const Status done = make_codec(spec).value()->decode(in, out);
  EXPECT_TRUE(done.ok()) << done.error().message();
  return out;
}

std::vector<float> through(const std::string& spec, std::span<const float> x) {
  return decoded(spec, encoded(spec, x), x.size());
}

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

// ---- squares: what a contribution says of its norm --------------------------------------------

TEST(Squares, AreThoseOfWhatThePayloadDecodesTo) {
  const std::vector<std::string> specs = {"f32",
                                          "bf16",
                                          "f16",
                                          "int8",
                                          "int8:rounding=stochastic",
                                          "sign",
                                          "topk:0.1",
                                          "topk:1",
                                          "topk:0.1,values=int8"};
  for (const std::string& spec : specs)
    for (const std::size_t n : {1, 15, 16, 17, 5000}) {
      SCOPED_TRACE(spec + ", " + std::to_string(n));
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i)
        x[i] = static_cast<float>(mix64(kSeed, i) % 2000) / 500.0f - 2.0f;
      const auto payload = encoded(spec, x);
      double expected = 0;
      for (const float v : decoded(spec, payload, n)) expected += static_cast<double>(v) * v;
      const auto codec = make_codec(spec).value();
      EXPECT_NEAR(codec->squares(payload, n), expected, 1e-12 * expected);
      EXPECT_TRUE(codec->check(payload, n).ok());
      const Bytes cut = Bytes(payload).first(payload.size() - 1);
      EXPECT_FALSE(codec->check(cut, n).ok());
      const bool has_index = codec->sparse(payload, n).value().has_value();
      EXPECT_TRUE(has_index || std::isnan(codec->squares(cut, n))) << "of what is not whole";
      EXPECT_TRUE(std::isnan(codec->squares({}, n)));
    }
}

TEST(Squares, AreFiniteExactlyWhereAllNumbersAre) {
  std::vector<float> x(1000, 3e38f);
  EXPECT_NEAR(squares_of(x), 1000 * 9e76, 1e72);
  x.assign(1000, 1e-38f);
  EXPECT_NEAR(squares_of(x), 1e-73, 1e-79);
  for (const float bad : {kInf, -kInf, kNan})
    for (const std::size_t at : {0, 500, 999}) {
      std::vector<float> y(1000, 1.0f);
      y[at] = bad;
      EXPECT_FALSE(std::isfinite(squares_of(y))) << bad << " at " << at;
    }
}

TEST(Squares, ANormMayBeOffByAThousandth) {
  EXPECT_TRUE(is_norm_of(0, 0));
  EXPECT_FALSE(is_norm_of(1e-30, 0));
  EXPECT_FALSE(is_norm_of(0, 1e-60));
  EXPECT_TRUE(is_norm_of(3.0029, 9));
  EXPECT_TRUE(is_norm_of(2.9971, 9));
  EXPECT_FALSE(is_norm_of(3.0031, 9));
  EXPECT_FALSE(is_norm_of(2.9969, 9));
}

// ---- top-k as a codec -------------------------------------------------------------------------

TEST(TopkCodec, KeepsTheLargestMagnitudesInTheirPlaces) {
  EXPECT_THAT(through("topk:0.5", std::vector<float>{.1f, 5, -3, .2f}), ElementsAre(0, 5, -3, 0));
  EXPECT_THAT(through("topk:0.5", std::vector<float>{.1f, -5, 3, .2f, -4, .05f}),
              ElementsAre(0, -5, 3, 0, -4, 0));
  EXPECT_THAT(through("topk:0", std::vector<float>{1, 2, -3, 2, 1}), ElementsAre(0, 0, -3, 0, 0));
  EXPECT_THAT(through("topk:0.3", std::vector<float>{2, -2, 2, -2, 2, -2, 2}),
              ElementsAre(2, -2, 2, 0, 0, 0, 0));  // ties: the lower index
}

TEST(TopkCodec, SendsDenseWhereThatIsNotLonger) {
  const std::vector<float> two{1, 2};
  EXPECT_EQ(encoded("topk:0.5", two).size(), 9u);
  EXPECT_THAT(through("topk:0.5", two), ElementsAre(1, 2));
  std::vector<float> x(10'000);
  std::iota(x.begin(), x.end(), 1.0f);
  EXPECT_EQ(encoded("topk:1", x).size(), 1 + 4 * x.size());
  EXPECT_EQ(through("topk:1", x), x);
  EXPECT_EQ(encoded("topk:0.99,values=int8", x).size(), 1 + int8::bytes(x.size()));
  EXPECT_LT(encoded("topk:0.8", x).size(), 1 + 4 * x.size());
}

TEST(TopkCodec, WhatIsNotFiniteArrives) {
  for (const std::string spec : {"topk:0.01", "topk:0.01,values=bf16", "topk:0.01,values=int8",
                                 "int8", "topk:1,values=bf16"}) {
    for (const float bad : {kNan, kInf, -kInf}) {
      std::vector<float> x(1000, 0.5f);
      x[777] = bad;
      for (std::size_t i = 0; i < 300; ++i) x[i] = 3e38f;  // larger ones do not push it out
      const auto back = through(spec, x);
      EXPECT_EQ(std::memcmp(back.data(), x.data(), 4 * x.size()), 0) << spec;
    }
  }
}

TEST(TopkCodec, ValuesNearTheLargestNumberStayFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> x(1000, 0.0f);
  x[5] = kMost;
  x[6] = -kMost;
  for (const std::string values : {"bf16", "int8", "int8,rounding=stochastic,feedback=off"}) {
    const auto back = through("topk:0.01,values=" + values, x);
    EXPECT_NEAR(back[5] / kMost, 1.0f, 0.01f) << values;
    EXPECT_NEAR(back[6] / kMost, -1.0f, 0.01f) << values;
  }
}

TEST(TopkCodec, PayloadsAreAsShortAsTheBarsSay) {
  CounterRng random(kSeed);
  std::vector<float> x(400'000);
  for (float& v : x) v = static_cast<float>(random.normal());
  const auto each = [&](const std::string& spec) {
    return static_cast<double>(encoded(spec, x).size()) /
           static_cast<double>(CodecSpec::parse(spec).value().ratio.count_of(x.size()));
  };
  EXPECT_LE(each("topk:0.01"), 5.04);
  EXPECT_LE(each("topk:0.01,values=bf16"), 3.05);
  EXPECT_LE(each("topk:0.01,values=int8"), 2.06);
  EXPECT_LE(each("topk:0.001,values=bf16"), 3.49);  // 2 % spread: only 400 elements
  EXPECT_LE(each("topk:0.001,values=int8"), 2.51);
}

// ---- index code -------------------------------------------------------------------------------

TEST(IndexCode, GivesBackWhatWasEncodedWithinTheLimit) {
  CounterRng random(kSeed, 1);
  std::vector<std::byte> out;
  for (int round = 0; round < 600; ++round) {
    const std::uint64_t n = 1 + random.below(round % 3 == 0   ? 50
                                             : round % 3 == 1 ? 30'000
                                                              : 4'000'000'000);
    std::vector<std::uint32_t> index;
    const std::uint64_t step = 1 + random.below(std::max<std::uint64_t>(1, n / 100));
    for (std::uint64_t i = random.below(n); i < n && index.size() < 9000;
         i +=
         1 +
         (round % 5 == 0 ? 0 : random.below(round % 7 == 0 && index.size() % 100 != 0 ? 3 : step)))
      index.push_back(static_cast<std::uint32_t>(i));
    if (round % 11 == 0) index.back() = static_cast<std::uint32_t>(n - 1);
    const std::size_t limit = index_code::max_bytes(index.size(), n);
    out.assign(limit + 8, std::byte{0xEE});
    const std::size_t size = index_code::encode(index, out.data());
    ASSERT_LE(size, limit) << index.size() << " of " << n;
    for (std::size_t i = limit; i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xEE});
    for (const Isa isa : {Isa::kBaseline, best_isa()}) {
      const Isa before = limit_isa(isa);
      for (const std::size_t behind : {std::size_t{0}, std::size_t{8}}) {
        std::vector<std::byte> exact(out.begin(),
                                     out.begin() + static_cast<std::ptrdiff_t>(size + behind));
        std::vector<std::uint32_t> back(index.size());
        const Status read = index_code::decode(Bytes(exact).first(size), behind, n, back);
        ASSERT_TRUE(read.ok()) << read.error().message();
        ASSERT_EQ(back, index);
        ASSERT_FALSE(index_code::decode(Bytes(exact).first(size), behind, index.back(), back).ok());
        ASSERT_FALSE(index_code::decode(Bytes(exact).first(size - 1), behind, n, back).ok());
      }
      limit_isa(before);
    }
  }
}

TEST(IndexCode, RefusesWhatTheEncoderCannotHaveWritten) {
  std::vector<std::uint32_t> index{4, 8, 12};
  std::vector<std::byte> out(64);
  const std::size_t size = index_code::encode(index, out.data());
  // l = 1: gaps 4, 3, 3 = low bits 0 1 1, upper parts 2 1 1
  EXPECT_THAT(std::vector<std::byte>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size)),
              ::testing::ElementsAreArray(bytes({0x01, 0x06, 0x54})));
  std::vector<std::uint32_t> back(3);
  const auto cause = [&](std::vector<std::byte> in, std::uint64_t n = 13) {
    const Status read = index_code::decode(in, 0, n, back);
    return read.ok() ? "" : read.error().message();
  };
  EXPECT_EQ(cause(bytes({0x01, 0x06, 0x54})), "");
  EXPECT_THAT(cause(bytes({0x01, 0x06, 0x54}), 12), HasSubstr("out of range"));
  EXPECT_THAT(cause(bytes({0x01, 0x06, 0x54, 0x00})), HasSubstr("too long"));
  EXPECT_THAT(cause(bytes({0x01, 0x06})), HasSubstr("too short"));
  EXPECT_THAT(cause(bytes({0x01, 0x06, 0x14})), HasSubstr("too short"));  // two ones
  EXPECT_THAT(cause(bytes({0x01, 0x06, 0xD4})), HasSubstr("padding"));    // four ones
  EXPECT_THAT(cause(bytes({0x01, 0x0E, 0x54})), HasSubstr("padding"));    // behind the low bits
  EXPECT_THAT(cause(bytes({0x20, 0x06, 0x54})), HasSubstr("low bits"));
  EXPECT_THAT(cause({}), HasSubstr("too short; 0 bytes for 3 of 13"));
}

// ---- int8 -------------------------------------------------------------------------------------

std::vector<float> mixed_numbers(std::size_t n, std::uint64_t stream) {
  CounterRng random(kSeed, stream);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int power = static_cast<int>(random.below(12)) - 6 + (i / 700 % 4 == 3 ? -130 : 0);
    x[i] = static_cast<float>(std::ldexp(random.normal(), power));
  }
  return x;
}

TEST(Int8, ErrorIsHalfAStepAndTheRestIsExact) {
  const auto x = mixed_numbers(20'000, 2);
  std::vector<std::byte> out(int8::bytes(x.size()));
  ASSERT_TRUE(int8::quantize(x, {}, out.data()));
  ASSERT_TRUE(int8::check(out, x.size()).ok());
  std::vector<float> back(x.size());
  int8::dequantize(out, back);
  for (std::size_t i = 0; i < x.size(); ++i) {
    float largest = 0;
    for (std::size_t j = i / 256 * 256; j < std::min(x.size(), i / 256 * 256 + 256); ++j)
      largest = std::max(largest, std::abs(x[j]));
    const float bound = largest < 0x1p-119f ? largest : largest / 127 * 1.004f * 0.5001f;
    ASSERT_LE(std::abs(x[i] - back[i]), bound) << i;
    const volatile float rest = x[i] - back[i];
    ASSERT_EQ(static_cast<double>(rest), static_cast<double>(x[i]) - static_cast<double>(back[i]));
    ASSERT_EQ(back[i] + rest, x[i]);
  }
}

TEST(Int8, StochasticRoundingIsUnbiasedAndRepeats) {
  std::vector<float> x(256, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.01f - 1.0f;
  std::vector<std::byte> out(int8::bytes(x.size())), again(out.size());
  std::vector<double> sum(x.size());
  std::vector<float> back(x.size());
  constexpr int kDraws = 4000;
  for (int draw = 0; draw < kDraws; ++draw) {
    ASSERT_TRUE(
        int8::quantize(x, {Rounding::kStochastic, mix64(9, std::uint64_t(draw))}, out.data()));
    int8::dequantize(out, back);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_LT(std::abs(back[i] - x[i]), 1.56f / 127 * 1.01f);
      sum[i] += back[i];
    }
  }
  const double step = 1.56 / 127;  // five standard deviations of the mean of 4000 coin flips
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(sum[i] / kDraws, x[i], step * 0.5 * 5 / std::sqrt(double(kDraws))) << i;
  ASSERT_TRUE(int8::quantize(x, {Rounding::kStochastic, 4}, out.data()));
  ASSERT_TRUE(int8::quantize(x, {Rounding::kStochastic, 4}, again.data()));
  EXPECT_EQ(out, again);
  ASSERT_TRUE(int8::quantize(x, {Rounding::kStochastic, 5}, again.data()));
  EXPECT_NE(out, again);
}

TEST(Int8, EveryInstructionSetWritesTheSameBytes) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{5000}}) {
    const auto x = mixed_numbers(n, n);
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      std::vector<std::vector<std::byte>> all;
      for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
        const Isa before = limit_isa(isa);
        std::vector<std::byte> out(int8::bytes(n));
        EXPECT_TRUE(int8::quantize(x, {rounding, 3}, out.data()));
        auto bad = x;
        bad[n / 2] = kNan;
        EXPECT_FALSE(int8::quantize(bad, {rounding, 3}, std::vector<std::byte>(out).data()));
        limit_isa(before);
        all.push_back(out);
      }
      for (const auto& other : all) EXPECT_EQ(other, all[0]);
    }
  }
}

// ---- sign -------------------------------------------------------------------------------------

TEST(Sign, KeepsSignsAndTheMeanMagnitudeOfABlock) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{77}, std::size_t{256}, std::size_t{20'000}}) {
    const auto x = mixed_numbers(n, 7 + n);
    std::vector<std::byte> out(sign::bytes(n));
    ASSERT_TRUE(sign::quantize(x, out.data()));
    ASSERT_TRUE(sign::check(out, n).ok());
    std::vector<float> back(n);
    sign::dequantize(out, back);
    for (std::size_t begin = 0; begin < n; begin += sign::kBlock) {
      const std::size_t end = std::min(n, begin + sign::kBlock);
      double sum = 0, squares = 0, left = 0;
      for (std::size_t i = begin; i < end; ++i) {
        sum += std::abs(static_cast<double>(x[i]));
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        left += std::pow(static_cast<double>(x[i]) - static_cast<double>(back[i]), 2);
        ASSERT_EQ(std::signbit(back[i]), std::signbit(x[i])) << i;
        ASSERT_EQ(std::abs(back[i]), std::abs(back[begin])) << i;
      }
      const double mean = sum / static_cast<double>(end - begin);
      ASSERT_NEAR(std::abs(back[begin]), mean, mean * 0.00392 + 1e-40)
          << begin;  // half a step of bfloat16
      // What error feedback needs: less is left than there was, but for the scale's rounding.
      const double count = static_cast<double>(end - begin);
      const double off = static_cast<double>(std::abs(back[begin])) - mean;
      ASSERT_NEAR(left, squares - sum * sum / count + off * off * count, 1e-9 * squares) << begin;
    }
  }
}

TEST(Sign, EveryInstructionSetWritesTheSameBytes) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{5000}}) {
    auto x = mixed_numbers(n, n);
    x[n / 3] = -0.0f;
    std::vector<std::vector<std::byte>> all;
    for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
      const Isa before = limit_isa(isa);
      std::vector<std::byte> out(sign::bytes(n));
      EXPECT_TRUE(sign::quantize(x, out.data()));
      for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
        auto wrong = x;
        wrong[n / 2] = bad;
        EXPECT_FALSE(sign::quantize(wrong, std::vector<std::byte>(out).data()));
      }
      limit_isa(before);
      all.push_back(out);
    }
    for (const auto& other : all) EXPECT_EQ(other, all[0]);
  }
}

TEST(Sign, ScalesOfTheLargestNumbersAreFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const std::size_t n : {std::size_t{3}, std::size_t{256}, std::size_t{300}}) {
    const std::vector<float> x(n, -kMost);
    std::vector<std::byte> out(sign::bytes(n));
    ASSERT_TRUE(sign::quantize(x, out.data()));
    EXPECT_TRUE(sign::check(out, n).ok());
    std::vector<float> back(n);
    sign::dequantize(out, back);
    EXPECT_THAT(back, ::testing::Each(-0x1.FEp127f));
  }
}

// ---- payloads from strangers ------------------------------------------------------------------

/// Why a payload of n numbers is refused; checks that nothing changes.
std::string refusal(const std::string& spec, const std::vector<std::byte>& in, std::size_t n) {
  const auto codec = make_codec(spec).value();
  std::string cause;
  for (const bool first : {false, true}) {
    std::vector<float> acc(n, 3.0f);
    const Status added = codec->decode_add(in, 1.0f, first, acc);
    cause = added.ok() ? "" : added.error().message();
    if (!added.ok()) {
      EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(acc, std::vector<float>(n, 3.0f));
    }
  }
  return cause;
}

TEST(Payload, IsRefusedWithItsCauseAndChangesNothing) {
  const std::vector<float> x{.1f, -5, 3, .2f, -4, .05f};
  const auto good = encoded("topk:0.5", x);
  // sparse f32, 3 elements, indices {1, 2, 4}, values -5, 3, -4
  EXPECT_EQ(good,
            bytes({0x10, 0x03, 0x00, 0x16, 0, 0, 0xA0, 0xC0, 0, 0, 0x40, 0x40, 0, 0, 0x80, 0xC0}));
  EXPECT_EQ(refusal("topk:0.5", good, 6), "");
  EXPECT_THAT(refusal("topk:0.5", good, 4), HasSubstr("out of range"));
  EXPECT_THAT(refusal("topk:0.5", good, 2), HasSubstr("3 numbers are more than the 2 there are"));
  EXPECT_THAT(refusal("topk:0.5,values=bf16", good, 6), HasSubstr("form 16 is not one of this"));
  EXPECT_THAT(refusal("int8", good, 6), HasSubstr("form 16"));
  EXPECT_THAT(refusal("topk:0.5", {}, 6), HasSubstr("0 bytes"));
  const auto change = [&](std::size_t at, int value) {
    auto bad = good;
    bad[at] = static_cast<std::byte>(value);
    return refusal("topk:0.5", bad, 6);
  };
  EXPECT_THAT(change(0, 0x13), HasSubstr("form 19"));
  EXPECT_THAT(change(0, 0xFF), HasSubstr("form 255"));
  EXPECT_THAT(change(0, 0x00), HasSubstr("dense f32, 25 bytes were expected for 6 numbers"));
  EXPECT_THAT(change(1, 0x04), HasSubstr("too short for 4 values"));
  EXPECT_THAT(change(1, 0x02), HasSubstr("indices"));
  EXPECT_THAT(change(1, 0x83), HasSubstr("shortest form"));
  for (const int infinite : {0x7F, 0xFF}) {
    auto bad = good;
    bad[6] = std::byte{0x80};
    bad[7] = static_cast<std::byte>(infinite);
    EXPECT_THAT(refusal("topk:0.5", bad, 6), HasSubstr("a value is not finite"));
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(
        refusal("topk:0.5", {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}, 6),
        "");
}

TEST(Payload, ScalesAndBitsOfSignAreChecked) {
  const std::vector<float> x(300, -1.0f);
  const auto good = encoded("sign", x);
  ASSERT_EQ(good.size(), 1 + 4 + 38);
  EXPECT_EQ(refusal("sign", good, 300), "");
  EXPECT_THAT(refusal("sign", good, 305), HasSubstr("dense sign"));
  EXPECT_THAT(refusal("int8", good, 300), HasSubstr("form 3"));
  auto bad = good;
  bad[2] |= std::byte{0x80};  // the first scale is negative
  EXPECT_THAT(refusal("sign", bad, 300), HasSubstr("scale of block 0 is negative or not finite"));
  bad = good;
  bad[3] = std::byte{0x80};
  bad[4] = std::byte{0x7F};  // the second is infinite
  EXPECT_THAT(refusal("sign", bad, 300), HasSubstr("scale of block 1"));
  bad = good;
  bad.back() |= std::byte{0x10};
  EXPECT_THAT(refusal("sign", bad, 300), HasSubstr("bits after the last number"));
  bad = good;
  bad[0] = std::byte{0x13};
  EXPECT_THAT(refusal("sign", bad, 300), HasSubstr("form 19"));
}

void expect_documented(const std::string& name, const std::vector<std::byte>& payload) {
  std::ifstream in("docs/explanation/compression.md");
  ASSERT_TRUE(in) << "run from the root of the project";
  std::vector<std::byte> shown;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) inside = line == "```hex " + name;
    if (!inside || line.starts_with("```")) continue;
    std::istringstream words(line.substr(0, line.find('#')));
    for (std::string word; words >> word;)
      shown.push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
  }
  EXPECT_EQ(payload, shown);
}

TEST(Payload, IsWhatTheDocumentShows) {
  expect_documented("sparse", encoded("topk:0.5", std::vector<float>{.1f, -5, 3, .2f, -4, .05f}));
  expect_documented("sign",
                    encoded("sign", std::vector<float>{1, -2, 0, -4, .5f, 3, 2, 1, -2.5f, 1}));
}

TEST(Payload, ScalesAndBytesOfInt8AreChecked) {
  std::vector<float> x(300, 1.0f);
  auto good = encoded("int8", x);
  EXPECT_EQ(refusal("int8", good, 300), "");
  auto bad = good;
  bad[2] = std::byte{0xBC};  // upper byte of the first scale: negative
  EXPECT_THAT(refusal("int8", bad, 300), HasSubstr("scale of block 0 is negative or too large"));
  bad = good;
  bad[3] = std::byte{0x80};
  bad[4] = std::byte{0x7F};
  EXPECT_THAT(refusal("int8", bad, 300), HasSubstr("scale of block 1"));
  bad = good;
  bad.back() = std::byte{0x80};
  EXPECT_THAT(refusal("int8", bad, 300), HasSubstr("-128"));
}

TEST(Payload, FlippedBitsAreRefusedOrGiveFiniteNumbers) {
  CounterRng random(kSeed, 5);
  std::vector<float> x(3000);
  for (float& v : x) v = static_cast<float>(random.normal());
  for (const std::string spec : {"topk:0.02", "topk:0.02,values=bf16", "topk:0.02,values=int8"}) {
    const auto codec = make_codec(spec).value();
    const auto good = encoded(spec, x);
    for (int round = 0; round < 3000; ++round) {
      auto bad = good;
      bad[random.below(bad.size())] ^= static_cast<std::byte>(1u << random.below(8));
      if (round % 4 == 0) bad.resize(random.below(bad.size()));
      std::vector<float> acc(x.size(), 1.0f);
      const Status added = codec->decode_add(bad, 1.0f, false, acc);
      ASSERT_EQ(codec->check(bad, x.size()).ok(), added.ok());
      const double squares = codec->squares(bad, x.size());
      ASSERT_TRUE(!added.ok() || std::isfinite(squares));
      for (const float v : acc) ASSERT_TRUE(added.ok() ? std::isfinite(v) : v == 1.0f);
    }
  }
}

TEST(Payload, SparseNumbersAreThoseOfDecode) {
  CounterRng random(9);
  std::vector<float> x(1000), decoded(x.size()), rebuilt(x.size());
  for (float& v : x) v = static_cast<float>(random.normal());
  for (const std::string spec : {"topk:0.05", "topk:0.05,values=int8"}) {
    const auto codec = make_codec(spec).value();
    std::vector<std::byte> out(codec->max_bytes(x.size()));
    out.resize(codec->encode(x, out).value());
    ASSERT_TRUE(codec->decode(out, decoded).ok());
    const auto sparse = codec->sparse(out, x.size()).value();
    ASSERT_TRUE(sparse && sparse->index.size() == 50);
    std::ranges::fill(rebuilt, 0.0f);
    for (std::size_t j = 0; j < 50; ++j) rebuilt[sparse->index[j]] = sparse->value[j];
    EXPECT_EQ(rebuilt, decoded);
    out.pop_back();
    EXPECT_FALSE(codec->sparse(out, x.size()).ok());
  }
  for (const std::string spec : {"int8", "f32", "topk:1"}) {
    const auto codec = make_codec(spec).value();
    std::vector<std::byte> out(codec->max_bytes(x.size()));
    out.resize(codec->encode(x, out).value());
    EXPECT_FALSE(codec->sparse(out, x.size()).value()) << spec;
  }
}

}  // namespace
}  // namespace centroid
