#include "common/codec/codec.h"

#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/spec.h"
#include "common/tensor/dtype.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kValuesSeed = 31;

/// What every codec promises, whatever its bytes are.
class CodecConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto made = make_codec(GetParam());
    ASSERT_TRUE(made.ok()) << made.error().message();
    codec_ = std::move(made).value();
    RecordProperty("seed", static_cast<int>(kValuesSeed));
  }

  static std::vector<float> random_numbers(std::size_t n, std::uint64_t stream = 0) {
    CounterRng rng(kValuesSeed, stream);
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(rng.normal() * std::pow(10.0, 4 * rng.uniform() - 2));
    return x;
  }

  std::vector<std::byte> encoded(std::span<const float> x) const {
    std::vector<std::byte> out(codec_->max_bytes(x.size()));
    const auto written = codec_->encode(x, out);
    EXPECT_TRUE(written.ok());
    EXPECT_LE(*written, out.size());
    out.resize(*written);
    return out;
  }

  std::vector<float> decoded(Bytes in, std::size_t n) const {
    std::vector<float> out(n, -7.0f);
    EXPECT_TRUE(codec_->decode(in, out).ok());
    return out;
  }

  std::unique_ptr<Codec> codec_;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

const std::vector<std::size_t> kLengths = {0,  1,  2,  7,  8,  15,   16,  17,
                                           31, 33, 63, 64, 65, 1000, 4099};

TEST_P(CodecConformance, SpecIsInNormalForm) {
  EXPECT_EQ(codec_->spec(), GetParam());
  EXPECT_EQ(make_codec(codec_->spec()).value()->spec(), codec_->spec());
}

TEST_P(CodecConformance, DecodeAddOverwritesWhenFirstAndAddsWithTwoRoundingsAfter) {
  for (const std::size_t n : kLengths) {
    const auto x = random_numbers(n);
    const auto bytes = encoded(x);
    const auto value = decoded(bytes, n);
    for (const float scale : {1.0f, 0.3f, -2.5f, 0.0f}) {
      std::vector<float> acc(n, std::numeric_limits<float>::quiet_NaN());
      ASSERT_TRUE(codec_->decode_add(bytes, scale, true, acc).ok());
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(acc[i], scale * value[i]) << n << " " << i;

      const auto before = random_numbers(n, 1);
      acc = before;
      ASSERT_TRUE(codec_->decode_add(bytes, scale, false, acc).ok());
      for (std::size_t i = 0; i < n; ++i) {
        const volatile float product = scale * value[i];  // volatile: rounded on its own
        ASSERT_EQ(acc[i], before[i] + product) << n << " " << i;
      }
    }
  }
}

TEST_P(CodecConformance, EveryInstructionSetGivesTheSameBits) {
  const std::size_t n = 4099;
  const auto x = random_numbers(n);
  const auto start = random_numbers(n, 2);
  struct Outputs {
    std::vector<std::byte> bytes;
    std::vector<float> value, first, sum;
  };
  const auto outputs = [&](Isa isa) {
    const Isa before = limit_isa(isa);
    Outputs o{encoded(x), {}, std::vector<float>(n), start};
    o.value = decoded(o.bytes, n);
    EXPECT_TRUE(codec_->decode_add(o.bytes, 0.37f, true, o.first).ok());
    EXPECT_TRUE(codec_->decode_add(o.bytes, 0.37f, false, o.sum).ok());
    limit_isa(before);
    return o;
  };
  const Outputs base = outputs(Isa::kBaseline);
  for (const Isa isa : {Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) {
      std::printf("not checked, this machine lacks it: %s\n", std::string(to_string(isa)).c_str());
      continue;
    }
    const Outputs wide = outputs(isa);
    EXPECT_EQ(wide.bytes, base.bytes) << to_string(isa);
    EXPECT_TRUE(same_bits(wide.value, base.value)) << to_string(isa);
    EXPECT_TRUE(same_bits(wide.first, base.first)) << to_string(isa);
    EXPECT_TRUE(same_bits(wide.sum, base.sum)) << to_string(isa);
  }
}

TEST_P(CodecConformance, PayloadsNeedNoAlignment) {
  const std::size_t n = 257;
  const auto x = random_numbers(n);
  const auto bytes = encoded(x);
  std::vector<std::byte> shifted(codec_->max_bytes(n) + 1);
  ASSERT_TRUE(codec_->encode(x, MutableBytes(shifted).subspan(1)).ok());
  EXPECT_EQ(std::memcmp(shifted.data() + 1, bytes.data(), bytes.size()), 0);
  const Bytes moved = Bytes(shifted).subspan(1, bytes.size());
  EXPECT_TRUE(same_bits(decoded(moved, n), decoded(bytes, n)));
  EXPECT_EQ(codec_->squares(moved, n), codec_->squares(bytes, n));
}

TEST_P(CodecConformance, EncodingWhatWasDecodedChangesNothing) {
  const CodecSpec spec = CodecSpec::parse(GetParam()).value();
  if (spec.rounding == Rounding::kStochastic) return;  // the scale is rounded up once more
  if (spec.kind == CodecSpec::Kind::kTopk && spec.values == ValueType::kInt8) return;
  const auto x = random_numbers(1000);
  const auto once = decoded(encoded(x), x.size());
  EXPECT_TRUE(same_bits(decoded(encoded(once), x.size()), once));
}

TEST_P(CodecConformance, WrongLengthIsRefusedAndNothingChanges) {
  const std::size_t n = 100;
  const auto x = random_numbers(n);
  auto bytes = encoded(x);
  const std::vector<float> before(n, 3.0f);
  bytes.push_back(std::byte{0});
  for (const std::size_t size : {std::size_t{0}, bytes.size() - 2, bytes.size()}) {
    auto acc = before;
    for (const bool first : {false, true}) {
      const Status added = codec_->decode_add(Bytes(bytes).first(size), 1.0f, first, acc);
      ASSERT_FALSE(added.ok()) << size;
      EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(added.error().message(), HasSubstr(std::to_string(size) + " bytes"));
    }
    ASSERT_FALSE(codec_->decode(Bytes(bytes).first(size), acc).ok());
    ASSERT_FALSE(codec_->check(Bytes(bytes).first(size), n).ok());
    EXPECT_TRUE(same_bits(acc, before));
  }
}

TEST_P(CodecConformance, TooSmallOutputIsRefusedUntouched) {
  const auto x = random_numbers(10);
  std::vector<std::byte> out(codec_->max_bytes(10) - 1, std::byte{9});
  const auto written = codec_->encode(x, out);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(out, ::testing::Each(std::byte{9}));
}

TEST_P(CodecConformance, NothingEncodesToAPayloadThatDecodesToNothing) {
  const auto bytes = encoded({});
  EXPECT_TRUE(codec_->decode_add(bytes, 1.0f, true, {}).ok());
  EXPECT_TRUE(codec_->decode(bytes, {}).ok());
}

TEST_P(CodecConformance, MaxBytesNeverWrapsAround) {
  EXPECT_GE(codec_->max_bytes(std::numeric_limits<std::size_t>::max()),
            std::numeric_limits<std::size_t>::max() / 2);
}

TEST_P(CodecConformance, WhatIsNotFiniteIsFoundWhereverItStands) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{300}}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 17) - 8.0f;
    EXPECT_TRUE(codec_->check_finite(encoded(x)).ok());
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()})
      for (std::size_t at = 0; at < n; at += at < 16 ? 1 : 29) {
        auto y = x;
        y[at] = bad;
        const auto payload = encoded(y);
        ASSERT_FALSE(std::isfinite(codec_->squares(payload, n)));
        const Status found = codec_->check_finite(payload);
        ASSERT_FALSE(found.ok()) << n << " numbers, " << bad << " at " << at;
        EXPECT_NE(found.error().message().find("number " + std::to_string(at) + " is "),
                  std::string::npos)
            << found.error().message();
      }
  }
  EXPECT_TRUE(codec_->check_finite({}).ok());
}

TEST_P(CodecConformance, NotANumberAndInfinityArrive) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  const auto back = decoded(encoded(x), x.size());
  EXPECT_EQ(back[0], kInf);
  EXPECT_EQ(back[1], -kInf);
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(back[3], 1.0f);
}

INSTANTIATE_TEST_SUITE_P(
    All, CodecConformance,
    ::testing::Values("f32", "bf16", "f16", "int8", "int8:rounding=stochastic", "sign", "topk:0.01",
                      "topk:0.1,values=bf16", "topk:0.3,values=int8", "topk:1",
                      "topk:0.05,values=int8,rounding=stochastic,feedback=off"),
    [](const auto& test) {
      std::string name = test.param;
      for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
      return name;
    });

TEST(F32Codec, KeepsEveryBit) {
  CounterRng rng(kValuesSeed, 9);
  std::vector<float> x(5000);
  for (float& v : x) v = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
  const auto codec = make_codec("f32").value();
  std::vector<std::byte> out(codec->max_bytes(x.size()));
  ASSERT_EQ(*codec->encode(x, out), 4 * x.size());
  EXPECT_EQ(std::memcmp(out.data(), x.data(), out.size()), 0);
}

TEST(Bf16Codec, WritesTheRoundedUpperHalves) {
  CounterRng rng(kValuesSeed, 10);
  std::vector<float> x(5000);
  for (float& v : x) v = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
  const auto codec = make_codec("bf16").value();
  std::vector<std::byte> out(codec->max_bytes(x.size()));
  for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    const Isa before = limit_isa(isa);
    ASSERT_EQ(*codec->encode(x, out), 2 * x.size());
    limit_isa(before);
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::uint16_t stored = 0;
      std::memcpy(&stored, out.data() + 2 * i, 2);
      ASSERT_EQ(stored, bf16_from_f32(x[i]));
      if (std::isnormal(x[i]) && std::abs(x[i]) < 3e38f) {
        ASSERT_LE(std::abs(f32_from_bf16(stored) - x[i]), std::abs(x[i]) * 0x1p-8f);
      }
    }
  }
}

TEST(F16Codec, ConvertsAsTheTypeSaysButStaysFinite) {
  const auto codec = make_codec("f16").value();
  std::vector<float> x;
  CounterRng rng(kValuesSeed, 11);
  for (int i = 0; i < 200'000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(rng.next())));
  for (int i = 0; i < 65536; ++i) {  // every half, what lies between it and the next, and around
    const float h = f32_from_f16(static_cast<std::uint16_t>(i));
    const float next = f32_from_f16(static_cast<std::uint16_t>(i ^ 1));
    for (const float v : {h, (h + next) / 2, std::nextafter((h + next) / 2, 0.0f),
                          std::nextafter((h + next) / 2, 1e30f)})
      x.push_back(v);
  }
  std::vector<std::byte> out(codec->max_bytes(x.size()));
  ASSERT_EQ(*codec->encode(x, out), 2 * x.size());
  std::vector<float> back(x.size());
  ASSERT_TRUE(codec->decode(out, back).ok());
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::uint16_t stored = 0;
    std::memcpy(&stored, out.data() + 2 * i, 2);
    const bool is_too_large = std::isfinite(x[i]) && std::abs(x[i]) > 65504.0f;
    const float limited = is_too_large ? std::copysign(65504.0f, x[i]) : x[i];
    ASSERT_EQ(stored, f16_from_f32(limited)) << x[i];
    const float expected = f32_from_f16(stored);
    ASSERT_EQ(std::memcmp(&back[i], &expected, 4), 0) << x[i];
  }
}

}  // namespace
}  // namespace centroid
