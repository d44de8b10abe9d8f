#include "common/tensor/tensor.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/tensor/chunk_plan.h"
#include "common/tensor/dtype.h"
#include "common/tensor/finite.h"
#include "common/tensor/multiversion.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Decode by the definition, in double.
double half_value(std::uint16_t h) {
  const int exponent = (h >> 10) & 0x1F;
  const double mantissa = h & 0x3FF;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// Nearest value in a format with `mantissa_bits` and the given smallest exponent, ties to even, in
// double.
double nearest(double x, int mantissa_bits, int min_exponent, double largest) {
  if (x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(e-1), 2^e)
  const double unit = std::ldexp(1.0, std::max(exponent - 1, min_exponent) - mantissa_bits);
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::abs(rounded) > largest ? std::copysign(HUGE_VAL, x) : rounded;
}

std::vector<float> interesting_floats() {
  std::vector<float> values = {
      0.0f,     -0.0f,    kInf,     -kInf,           65504.0f, 65519.996f,   65520.0f,
      65536.0f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-14f, 0x1.ffcp-15f, 1.0f};
  // Each half-way point between two halves, and its neighbours.
  for (std::uint32_t h = 0; h < 0x7BFF; ++h) {
    const auto middle = static_cast<float>((half_value(static_cast<std::uint16_t>(h)) +
                                            half_value(static_cast<std::uint16_t>(h + 1))) /
                                           2);
    for (const float x : {middle, std::nextafter(middle, kInf), std::nextafter(middle, 0.0f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  CounterRng rng(20260101);
  for (int i = 0; i < 200'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(rng.next())));
  return values;
}

TEST(Half, EveryHalfDecodesToItsValueAndBack) {
  for (std::uint32_t h = 0; h <= 0xFFFF; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const float x = f32_from_f16(half);
    if ((h & 0x7C00) != 0x7C00) {
      ASSERT_EQ(static_cast<double>(x), half_value(half)) << h;
      ASSERT_EQ(std::signbit(x), (h & 0x8000) != 0) << h;
      ASSERT_EQ(f16_from_f32(x), half) << h;
    } else if ((h & 0x3FF) == 0) {
      ASSERT_EQ(x, (h & 0x8000) != 0 ? -kInf : kInf);
      ASSERT_EQ(f16_from_f32(x), half);
    } else {
      ASSERT_TRUE(std::isnan(x)) << h;
      ASSERT_EQ(f16_from_f32(x), half | 0x200) << h;  // the same NaN, quiet
    }
  }
}

TEST(Half, EncodesToTheNearestWithTiesToEven) {
  for (const float x : interesting_floats()) {
    const std::uint16_t half = f16_from_f32(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(f32_from_f16(half)));
      continue;
    }
    const double expected = nearest(static_cast<double>(x), 10, -14, 65504);
    ASSERT_EQ(static_cast<double>(f32_from_f16(half)), expected) << std::hexfloat << x;
    ASSERT_EQ((half & 0x8000) != 0, std::signbit(x)) << std::hexfloat << x;
  }
}

TEST(Bfloat16, EveryValueDecodesAndEncodesBack) {
  for (std::uint32_t b = 0; b <= 0xFFFF; ++b) {
    const auto brain = static_cast<std::uint16_t>(b);
    const float x = f32_from_bf16(brain);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(x), b << 16);
    ASSERT_EQ(bf16_from_f32(x), std::isnan(x) ? (b | 0x40) : b) << b;
  }
}

TEST(Bfloat16, EncodesToTheNearestWithTiesToEven) {
  for (const float x : interesting_floats()) {
    for (const float y :
         {x, std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | 0x8000u),
          std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & ~0xFFFFu) | 0x8000u)}) {
      const float back = f32_from_bf16(bf16_from_f32(y));
      if (std::isnan(y)) {
        ASSERT_TRUE(std::isnan(back));
        continue;
      }
      const double expected = nearest(static_cast<double>(y), 7, -126, 0x1.fep127);
      ASSERT_EQ(static_cast<double>(back), expected) << std::hexfloat << y;
      ASSERT_EQ(std::signbit(back), std::signbit(y));
    }
  }
}

// At every place, so that no loop that is cut into vectors looks past one.
TEST(Finite, OneBadNumberAnywhereIsFound) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(is_finite(std::vector<float>{1, 2, 3}));
  EXPECT_TRUE(is_finite({}));
  EXPECT_TRUE(is_finite(std::vector<float>{std::numeric_limits<float>::max(),
                                           std::numeric_limits<float>::denorm_min(), -0.0F}));
  EXPECT_FALSE(is_finite(std::vector<float>{-kInf}));
  for (const float bad : {nan, -nan, kInf, -kInf})
    for (std::size_t length = 1; length <= 70; ++length)
      for (std::size_t at = 0; at < length; ++at) {
        std::vector<float> values(length, 1e38F);
        values[at] = bad;
        ASSERT_FALSE(is_finite(values)) << bad << " at " << at << " of " << length;
      }
}

TEST(Finite, ModerateIsBelowTwoToThe32) {
  const float limit = 4294967296.0F, below = std::nextafter(limit, 0.0F);
  EXPECT_TRUE(is_moderate(std::vector<float>{below, -below, 0, -0.0F}));
  for (const float large : {limit, -limit, kInf, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(is_moderate(std::vector<float>{1, large, 1})) << large;
}

TEST(DTypes, BothSpellingsParseAndOthersAreRefusedByName) {
  for (std::uint8_t n = 1; n <= 7; ++n) {
    const DType dtype = *dtype_from_wire(n);
    EXPECT_EQ(static_cast<std::uint8_t>(dtype), n);
    EXPECT_EQ(*parse_dtype(to_string(dtype)), dtype);
    EXPECT_EQ(*parse_dtype(safetensors_name(dtype)), dtype);
  }
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kU8), 1u);
  EXPECT_FALSE(dtype_from_wire(0).ok());
  EXPECT_FALSE(dtype_from_wire(8).ok());
  EXPECT_THAT(parse_dtype("float").error().message(), HasSubstr("\"float\" is not one of f32"));
}

Manifest two_tensors() {
  return {{"layer.weight", DType::kF32, {512, 64}}, {"layer.bias", DType::kF32, {512}}};
}

TEST(ManifestHash, KnownAnswersOfTheSerialisationStay) {
  EXPECT_EQ(manifest_hash({}), 0xE1E8F65EB3A6D192ULL);
  EXPECT_EQ(manifest_hash({{"w", DType::kF32, {2, 3}}}), 0xCA57C5EA0DA15277ULL);
  EXPECT_EQ(manifest_hash({{"layer.weight", DType::kF32, {512, 64}},
                           {"layer.bias", DType::kBF16, {512}},
                           {"step", DType::kI64, {}}}),
            0x9C32F8A7D2730B33ULL);
}

TEST(ManifestHash, EveryDifferenceChangesIt) {
  const std::vector<Manifest> manifests = {
      {},
      {{"ab", DType::kF32, {2, 3}}},
      {{"ab", DType::kF32, {3, 2}}},
      {{"ab", DType::kF32, {6}}},
      {{"ab", DType::kF32, {2, 3, 1}}},
      {{"ab", DType::kF64, {2, 3}}},
      {{"ba", DType::kF32, {2, 3}}},
      {{std::string("ab\0", 3), DType::kF32, {2, 3}}},
      {{"ab", DType::kF32, {}}},
      {{"a", DType::kF32, {}}, {"b", DType::kF32, {}}},
      {{"b", DType::kF32, {}}, {"a", DType::kF32, {}}},
      {{"abcdefghi", DType::kF32, {}}, {"b", DType::kF32, {}}},
      {{"abcdefgh", DType::kF32, {}}, {"ib", DType::kF32, {}}},
  };
  std::set<std::uint64_t> hashes;
  for (const Manifest& manifest : manifests) hashes.insert(manifest_hash(manifest));
  EXPECT_EQ(hashes.size(), manifests.size());
}

TEST(ManifestValidation, AcceptsWhatTheLimitsAllow) {
  EXPECT_TRUE(validate(two_tensors()).ok());
  EXPECT_TRUE(validate({{std::string(256, 'x'), DType::kU8, Shape(8, 1)}}).ok());
  EXPECT_TRUE(validate({{"größe", DType::kF32, {}}, {"empty", DType::kF32, {0, 7}}}).ok());
}

TEST(ManifestValidation, RefusesWithTheTensorAndTheReason) {
  const std::uint64_t half = std::uint64_t{1} << 62;
  const std::vector<std::pair<Manifest, std::string>> cases = {
      {{}, "no tensor"},
      {{{"", DType::kF32, {}}}, "0 bytes"},
      {{{std::string(257, 'x'), DType::kF32, {}}}, "257 bytes"},
      {{{"a", DType::kF32, {}}, {"a", DType::kF32, {}}}, "tensor 1 \"a\": name appears twice"},
      {{{"a\xC3", DType::kF32, {}}}, "not UTF-8"},
      {{{"\xED\xA0\x80", DType::kF32, {}}}, "not UTF-8"},
      {{{"\xC0\x80", DType::kF32, {}}}, "not UTF-8"},
      {{{"\xF5\x80\x80\x80", DType::kF32, {}}}, "not UTF-8"},
      {{{"\x80", DType::kF32, {}}}, "not UTF-8"},
      {{{"__metadata__", DType::kF32, {}}}, "reserved"},
      {{{"a", DType::kF32, Shape(9, 1)}}, "rank 9"},
      {{{"a", static_cast<DType>(99), {}}}, "dtype"},
      {{{"a", DType::kF32, {half}}}, "overflows"},
      {{{"a", DType::kF32, {half, half, 0}}}, "overflows"},
      {{{"a", DType::kU8, {half}}, {"b", DType::kU8, {half}}}, "tensor 1 \"b\""},
  };
  for (const auto& [manifest, reason] : cases) {
    const Status status = validate(manifest);
    ASSERT_FALSE(status.ok()) << reason;
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message(), HasSubstr(reason));
  }
}

TEST(ForeignText, IsMadePrintable) {
  EXPECT_EQ(printable("größe"), "größe");
  EXPECT_EQ(printable("a\x01\n\x7F\xFFz"), "a????z");
  EXPECT_EQ(printable("a\xC3"), "a?");
  EXPECT_EQ(printable("abcö", 4), "abc...");  // never half a character
  EXPECT_EQ(printable("abcö", 5), "abcö");
}

TEST(Buffers, AreKnownByTheLastPartOfTheirName) {
  for (const char* name : {"running_mean", "norms.0.running_var", "a.b.running_x"})
    EXPECT_TRUE(is_buffer({name, DType::kF32, {1}})) << name;
  for (const char* name : {"running", "running_mean.weight", "norm.weight", "norm.not_running_mean",
                           "running_mean.", "w.Running_mean"})
    EXPECT_FALSE(is_buffer({name, DType::kF32, {1}})) << name;
  const TensorInfo weight{"w", DType::kF32, {2, 3}}, mean{"n.running_mean", DType::kF32, {5}};
  EXPECT_EQ(trained_elements({weight}), 6U);
  EXPECT_EQ(trained_elements({weight, mean, {"n.running_var", DType::kF32, {5}}}), 6U);
  EXPECT_DEATH((void)trained_elements({mean, weight}), "is_buffer");
  const auto plan = ChunkPlan::make({mean, weight}, 64).value();
  EXPECT_TRUE(plan.has_buffers() && plan.is_buffer(plan.chunks()[0]));
  EXPECT_FALSE(plan.is_buffer(plan.chunks()[1]));
  EXPECT_FALSE(ChunkPlan::make({weight}, 64).value().has_buffers());
}

TEST(ManifestDifference, IsEmptyForEqualAndNamesTheFirstOtherwise) {
  const Manifest ours = two_tensors();
  EXPECT_EQ(describe_difference(ours, ours), "");

  Manifest other_shape = ours;
  other_shape[1] = {"layer.bias", DType::kBF16, {256}};
  EXPECT_EQ(describe_difference(ours, other_shape),
            "tensor 1 \"layer.bias\": ours is f32 [512], theirs is bf16 [256]");

  const Manifest shorter = {ours[0]};
  EXPECT_EQ(describe_difference(ours, shorter),
            "tensor 1: ours is \"layer.bias\" f32 [512], theirs is nothing; theirs lacks "
            "\"layer.bias\" (of 2 tensors of ours theirs lacks 1, and has 0 more)");
  EXPECT_THAT(describe_difference(shorter, ours), HasSubstr("ours lacks \"layer.bias\""));
  EXPECT_THAT(describe_difference(ours, {ours[1], ours[0]}), HasSubstr("in another order"));

  const Manifest renamed = {ours[0], {"head.bias", DType::kF32, {512}}};
  const std::string text = describe_difference(ours, renamed);
  EXPECT_THAT(text, HasSubstr("theirs lacks \"layer.bias\""));
  EXPECT_THAT(text, HasSubstr("ours lacks \"head.bias\""));
}

TEST(Shapes, ArePrintedAndCounted) {
  EXPECT_EQ(to_string(Shape{512, 64}), "[512, 64]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ((TensorInfo{"a", DType::kF16, {3, 5}}.elements()), 15u);
  EXPECT_EQ((TensorInfo{"a", DType::kF16, {3, 5}}.bytes()), 30u);
  EXPECT_EQ((TensorInfo{"a", DType::kF64, {}}.bytes()), 8u);
  EXPECT_EQ((TensorInfo{"a", DType::kF64, {4, 0}}.elements()), 0u);
}

TEST(Multiversion, NeverUsesMoreThanTheMachineHas) {
  const Isa before = limit_isa(Isa::kAvx512);
  EXPECT_EQ(active_isa(), best_isa());
  limit_isa(Isa::kBaseline);
  EXPECT_EQ(active_isa(), Isa::kBaseline);
  limit_isa(before);
}

}  // namespace
}  // namespace centroid
