#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/error_feedback.h"
#include "common/tensor/multiversion.h"

namespace centroid::codec_feedback_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 41;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Tensors of 3 + 2 + 1 chunks.
ChunkPlan make_plan() {
  return ChunkPlan::make(
             {{"a", DType::kF32, {700}}, {"b", DType::kF32, {20, 20}}, {"c", DType::kF32, {9}}},
             256 * sizeof(float))
      .value();
}

class Feedback {
 public:
  explicit Feedback(const std::string& spec, ThreadPool* pool = nullptr)
      : plan(make_plan()),
        codec(make_codec(spec).value()),
        feedback(ErrorFeedback::make(spec, plan, pool).value()) {}

  std::size_t size() const { return plan.total_elements(); }

  std::vector<float> residual() const {
    const auto state = feedback->state();
    return {state.residual.begin(), state.residual.end()};
  }

  std::vector<float> momentum() const {
    const auto state = feedback->state();
    return {state.momentum.begin(), state.momentum.end()};
  }

  std::vector<float> gradient(std::uint64_t stream) const {
    CounterRng random(kSeed, stream);
    std::vector<float> g(size());
    for (float& v : g)
      v = static_cast<float>(random.normal() * std::pow(10.0, 3 * random.uniform()));
    return g;
  }

  /// Everything the round sends, decoded.
  std::vector<float> send(const std::vector<float>& gradient, std::uint64_t round) {
    std::vector<float> sent(size(), -7.0f);
    for (const Chunk& chunk : plan.chunks()) {
      const auto payload = feedback->encode(chunk.id, gradient, round);
      EXPECT_TRUE(payload.ok()) << payload.error().message();
      if (!payload.ok()) return sent;
      EXPECT_TRUE(
          codec->decode(*payload, std::span(sent).subspan(chunk.position, chunk.elements)).ok());
    }
    return sent;
  }

  ChunkPlan plan;
  std::unique_ptr<Codec> codec;
  std::unique_ptr<ErrorFeedback> feedback;
};

std::vector<float> added(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

const std::vector<std::string> kSpecs = {
    "topk:0.01", "topk:0.05,values=bf16", "topk:0.1,values=int8", "topk:0.02,scope=global",
    "topk:0",    "topk:1,values=int8",    "bf16:feedback=on",     "f16:feedback=on",
    "topk:0.97", "topk:0.001,warmup=9",   "int8:feedback=on",     "topk:1",
};

/// With momentum correction, and what is not exact, too.
const std::vector<std::string> kMoreSpecs = {
    "sign", "topk:0.05,momentum=0.9", "topk:0.1,momentum=0.9,masking=off,nesterov=on",
    "topk:0.05,values=int8,momentum=0.5,clip=1,warmup=4", "topk:0.1,scope=global,momentum=0.9"};

/// Rounds that break off at every chunk, begun anew, against rounds that nobody disturbs.
void expect_undone(const std::string& spec) {
  Feedback right(spec), f(spec);
  std::uint64_t round = 1;
  for (std::size_t broken = 0; broken <= f.plan.chunks().size(); ++broken, ++round) {
    const auto g = f.gradient(round);
    const auto residual = f.residual(), momentum = f.momentum();
    for (std::size_t c = 0; c < broken; ++c)
      ASSERT_TRUE(f.feedback->encode(f.plan.chunks()[c].id, g, round).ok());
    f.feedback->undo();
    EXPECT_FALSE(f.feedback->is_open());
    EXPECT_TRUE(same_bits(f.residual(), residual)) << broken;
    EXPECT_TRUE(same_bits(f.momentum(), momentum)) << broken;
    EXPECT_EQ(f.feedback->rounds(), right.feedback->rounds());
    EXPECT_TRUE(same_bits(f.send(g, round), right.send(g, round))) << broken;
    EXPECT_TRUE(same_bits(f.residual(), right.residual())) << broken;
    EXPECT_TRUE(same_bits(f.momentum(), right.momentum())) << broken;
    f.feedback->commit();
    right.feedback->commit();
  }
}

/// A promise that is lost: at once, behind a round that is undone, and behind one that counts.
void expect_promise_undone(const std::string& spec) {
  for (const int rounds_behind : {0, 1, 2}) {
    SCOPED_TRACE(rounds_behind);
    Feedback f(spec);
    f.send(f.gradient(1), 1);
    f.feedback->commit();
    const auto before = f.residual(), momentum = f.momentum();
    f.send(f.gradient(2), 2);
    f.feedback->commit_promised();
    EXPECT_EQ(f.feedback->rounds(), 2u);
    const auto after = f.residual();
    if (rounds_behind > 0) f.send(f.gradient(3), 3);
    if (rounds_behind == 1) f.feedback->undo();
    if (rounds_behind == 2) f.feedback->commit();
    const auto left = f.residual();
    f.feedback->undo_promised();
    EXPECT_EQ(f.feedback->rounds(), rounds_behind == 2 ? 2u : 1u);
    const auto now = f.residual();
    if (rounds_behind < 2) {
      EXPECT_TRUE(same_bits(now, before));
      EXPECT_TRUE(same_bits(f.momentum(), momentum));
      continue;
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
      const float right = left[i] + (before[i] - after[i]);
      ASSERT_EQ(now[i], right) << i;
    }
    f.feedback->undo_promised();  // once
    EXPECT_TRUE(same_bits(f.residual(), now));
  }
}

class FeedbackOfCodec : public ::testing::TestWithParam<std::string> {};

TEST_P(FeedbackOfCodec, SentPlusResidualIsResidualBeforePlusGradientBitForBit) {
  Feedback f(GetParam());
  for (std::uint64_t round = 1; round <= 12; ++round) {
    auto g = f.gradient(round);
    if (round == 5) g[700] = g[3] = 3e4f;  // rows that dominate their block
    if (round == 7) std::fill(g.begin(), g.end(), 0.0f);
    if (round == 8) std::fill(g.begin(), g.begin() + 300, 1e-39f);
    const auto before = f.residual();
    const auto sent = f.send(g, round);
    EXPECT_TRUE(same_bits(added(sent, f.residual()), added(before, g))) << round;
  }
  const auto& totals = f.feedback->totals();
  EXPECT_EQ(totals.chunks, 12 * f.plan.chunks().size());
  EXPECT_EQ(totals.elements, 12 * f.size());
}

/// A sign's residual is a rounded difference: nothing is lost beyond that.
TEST(FeedbackOfSign, SentPlusResidualIsWhatThereWasButForOneRounding) {
  Feedback f("sign");
  for (std::uint64_t round = 1; round <= 12; ++round) {
    auto g = f.gradient(round);
    if (round == 5) g[700] = g[3] = 3e4f;
    if (round == 7) std::fill(g.begin(), g.end(), 0.0f);
    if (round == 8) std::fill(g.begin(), g.end(), 3e38f);  // what is left stays finite
    const auto before = f.residual();
    const auto sent = f.send(g, round);
    const auto left = f.residual();
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double there = static_cast<double>(before[i] + g[i]);
      const double error = static_cast<double>(sent[i]) + static_cast<double>(left[i]) - there;
      ASSERT_TRUE(std::isfinite(left[i]));
      ASSERT_LE(std::abs(error), std::abs(static_cast<double>(left[i])) * 0x1p-24 + 1e-44) << i;
    }
    if (round == 8) f.feedback->reset();
  }
}

TEST(FeedbackOfSign, AttemptsSendTheSameBytesAndTakingBackLosesOneRounding) {
  Feedback f("sign");
  f.send(f.gradient(1), 1);
  f.feedback->commit();
  const auto before = f.residual(), g = f.gradient(2);
  const auto first = f.send(g, 2);
  EXPECT_TRUE(same_bits(f.send(g, 2), first));
  f.feedback->take_back();
  const auto back = f.residual();
  for (std::size_t i = 0; i < g.size(); ++i)
    ASSERT_NEAR(back[i], before[i] + g[i],
                3e-7 * (std::abs(first[i]) + std::abs(before[i] + g[i])));
}

TEST_P(FeedbackOfCodec, AttemptsSendTheSameBytes) {
  Feedback f(GetParam());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const auto g = f.gradient(round);
    const auto first = f.send(g, round);
    const auto after = f.residual();
    EXPECT_TRUE(same_bits(f.send(g, round), first));
    EXPECT_TRUE(same_bits(f.residual(), after));
  }
}

TEST_P(FeedbackOfCodec, WhatIsTakenBackStaysInTheResidual) {
  Feedback f(GetParam());
  f.send(f.gradient(1), 1);
  f.feedback->commit();
  const auto before = f.residual();
  const auto g = f.gradient(2);
  f.send(g, 2);
  f.feedback->take_back();
  EXPECT_TRUE(same_bits(f.residual(), added(before, g)));
  const auto again = f.send(f.gradient(3), 2);
  EXPECT_TRUE(same_bits(added(again, f.residual()), added(added(before, g), f.gradient(3))));
}

TEST_P(FeedbackOfCodec, ARoundThatIsUndoneLeavesNoTraceAndSendsTheSameBytesAgain) {
  expect_undone(GetParam());
}

TEST_P(FeedbackOfCodec, WhatWasPromisedAndIsLostIsTakenOutAgain) {
  expect_promise_undone(GetParam());
}

TEST_P(FeedbackOfCodec, RestoredStateGoesOnWithTheSameBits) {
  Feedback whole(GetParam()), first(GetParam()), second(GetParam());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    whole.send(whole.gradient(round), round);
    first.send(first.gradient(round), round);
  }
  whole.feedback->commit();
  first.feedback->commit();
  ASSERT_TRUE(second.feedback->restore(first.feedback->state()).ok());
  for (std::uint64_t round = 4; round <= 6; ++round)
    EXPECT_TRUE(same_bits(second.send(second.gradient(round), round),
                          whole.send(whole.gradient(round), round)));
  EXPECT_TRUE(same_bits(second.residual(), whole.residual()));
}

TEST_P(FeedbackOfCodec, EveryInstructionSetAndThreadCountSendsTheSame) {
  ThreadPool pool(2);
  Feedback base(GetParam()), wide(GetParam(), &pool);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const Isa before = limit_isa(Isa::kBaseline);
    const auto sent = base.send(base.gradient(round), round);
    limit_isa(before);
    EXPECT_TRUE(same_bits(wide.send(base.gradient(round), round), sent));
  }
  EXPECT_TRUE(same_bits(wide.residual(), base.residual()));
}

INSTANTIATE_TEST_SUITE_P(All, FeedbackOfCodec, ::testing::ValuesIn(kSpecs), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(ErrorFeedback, RoundsAreUndoneWithMomentumAndWithSignsToo) {
  for (const std::string& spec : kMoreSpecs) {
    SCOPED_TRACE(spec);
    expect_undone(spec);
    expect_promise_undone(spec);
  }
}

TEST(ErrorFeedback, APromiseThatIsKeptIsNotUndone) {
  Feedback f("topk:0.1");
  f.send(f.gradient(1), 1);
  f.feedback->commit_promised();
  f.feedback->confirm_promised();
  const auto left = f.residual();
  f.feedback->undo_promised();
  EXPECT_TRUE(same_bits(f.residual(), left));
}

TEST(ErrorFeedback, APromiseOfNothingLeavesTheWarmUpWhereItIs) {
  Feedback f("topk:0.001,warmup=9");
  f.send(f.gradient(1), 1);
  f.feedback->commit();
  f.feedback->commit_promised();  // a round without a share
  f.feedback->undo_promised();
  EXPECT_EQ(f.feedback->rounds(), 1u);
}

TEST(ErrorFeedback, AGradientThatWasRefusedIsUndone) {
  Feedback f("topk:0.1,momentum=0.9");
  f.send(f.gradient(1), 1);
  f.feedback->commit();
  const auto residual = f.residual(), momentum = f.momentum();
  auto g = f.gradient(2);
  g[3] = kNan;
  EXPECT_FALSE(f.feedback->encode(ChunkId(0), g, 2).ok());
  f.feedback->undo();
  EXPECT_TRUE(same_bits(f.residual(), residual));
  EXPECT_TRUE(same_bits(f.momentum(), momentum));
}

TEST(ErrorFeedback, HundredStepsSendEverythingButTheResidual) {
  Feedback f("topk:0.01");
  CounterRng random(kSeed, 99);
  std::vector<float> sent(f.size()), gradients(f.size());
  for (std::uint64_t round = 1; round <= 100; ++round) {
    std::vector<float> g(f.size());
    for (float& v : g) v = static_cast<float>(random.below(2001)) - 1000.0f;  // sums are exact
    sent = added(sent, f.send(g, round));
    gradients = added(gradients, g);
  }
  EXPECT_TRUE(same_bits(added(sent, f.residual()), gradients));
}

TEST(ErrorFeedback, TensorScopeKeepsAShareOfEachTensorGlobalOneOfAll) {
  Feedback tensors("topk:0.01"), all("topk:0.01,scope=global");
  EXPECT_FALSE(tensors.feedback->needs_all());
  EXPECT_TRUE(all.feedback->needs_all());
  std::vector<float> g(tensors.size());
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i + 1);
  const auto kept = [](const std::vector<float>& sent, std::size_t begin, std::size_t end) {
    return std::count_if(sent.begin() + static_cast<std::ptrdiff_t>(begin),
                         sent.begin() + static_cast<std::ptrdiff_t>(end),
                         [](float v) { return v != 0; });
  };
  const auto of_tensors = tensors.send(g, 1);
  EXPECT_EQ(kept(of_tensors, 0, 700), 7);  // of 700 in three chunks, all in the last one
  EXPECT_EQ(kept(of_tensors, 467, 700), 7);
  EXPECT_EQ(kept(of_tensors, 700, 1100), 4);
  EXPECT_EQ(kept(of_tensors, 1100, 1109), 1);
  const auto of_all = all.send(g, 1);
  EXPECT_EQ(kept(of_all, 0, 1097), 0);
  EXPECT_EQ(kept(of_all, 1097, 1109), 12);
  EXPECT_EQ(tensors.feedback->totals().sent, 12u);
}

TEST(ErrorFeedback, RefusesSumsThatAreNotFiniteAndStaysFinite) {
  for (const std::string spec : {"topk:0.01", "int8:feedback=on", "topk:1", "bf16:feedback=on"}) {
    Feedback f(spec);
    auto g = f.gradient(1);
    g[701] = kNan;
    g[705] = std::numeric_limits<float>::infinity();
    const Chunk& chunk = f.plan.chunks_of(TensorId{1})[0];
    const auto payload = f.feedback->encode(chunk.id, g, 1);
    ASSERT_FALSE(payload.ok());
    EXPECT_THAT(payload.error().message(), HasSubstr("2 of the"));
    EXPECT_THAT(payload.error().message(),
                HasSubstr("tensor b are not finite, the first is number 1"));
    for (const float v : f.residual()) ASSERT_TRUE(std::isfinite(v));
    EXPECT_EQ(f.residual()[700], g[700]);
    EXPECT_EQ(f.residual()[701], 0);
    EXPECT_EQ(f.residual()[699], 0);  // another tensor
  }
}

TEST(ErrorFeedback, PassesOnWhatIsNotFiniteWhenTold) {
  for (const std::string spec : {"topk:0.01", "topk:0.01,values=int8", "int8:feedback=on"}) {
    Feedback f(spec);
    f.feedback->pass_nonfinite(true);
    auto g = f.gradient(1);
    g[701] = kNan;
    g[705] = -std::numeric_limits<float>::infinity();
    const auto sent = f.send(g, 1);
    EXPECT_TRUE(std::isnan(sent[701]));
    EXPECT_EQ(sent[705], g[705]);
    EXPECT_EQ(sent[700], g[700]);  // the whole unit as it is
    for (const float v : f.residual()) ASSERT_TRUE(std::isfinite(v));
    EXPECT_EQ(f.residual()[701], 0);
    f.feedback->take_back();
    for (const float v : f.residual()) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(ErrorFeedback, NumbersTooLargeForF16AreRefused) {
  Feedback f("f16:feedback=on");
  std::vector<float> g(f.size(), 1.0f);
  g[2] = 537919552.0f;  // minus 65504 is half-way between two floats, and so is the way back
  const auto payload = f.feedback->encode(ChunkId{0}, g, 1);
  ASSERT_FALSE(payload.ok());
  EXPECT_THAT(payload.error().message(), HasSubstr("too large for f16"));
}

// ---- Deep Gradient Compression ----------------------------------------------------------------

/// A plain rendering of the rules for one tensor.
struct Rules {
  float m = 0;
  bool nesterov = false, masking = true;
  std::vector<float> u, v;
  std::vector<float> step(const std::vector<float>& g, const std::vector<float>& sent) {
    u.resize(g.size());
    v.resize(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      if (nesterov) {
        u[i] = m * (u[i] + g[i]);
        v[i] = v[i] + (u[i] + g[i]);
      } else {
        u[i] = m * u[i] + g[i];
        v[i] = v[i] + u[i];
      }
      if (sent[i] == 0) continue;
      v[i] = v[i] - sent[i];
      if (masking) u[i] = 0;
    }
    return v;
  }
};

TEST(ErrorFeedback, MomentumCorrectionFollowsTheRules) {
  for (const std::string options :
       {"momentum=0.9", "momentum=0.9,nesterov=on", "momentum=0.5,masking=off"}) {
    Feedback f("topk:0.05," + options);
    Rules rules{options.find("0.9") != std::string::npos ? 0.9f : 0.5f,
                options.find("nesterov") != std::string::npos,
                options.find("masking") == std::string::npos,
                {},
                {}};
    for (std::uint64_t round = 1; round <= 8; ++round) {
      const auto g = f.gradient(round);
      const auto sent = f.send(g, round);
      EXPECT_EQ(rules.step(g, sent), f.residual()) << options << " " << round;
      EXPECT_EQ(rules.u, f.momentum()) << options << " " << round;
    }
  }
}

TEST(ErrorFeedback, ClipsToTheNormOverTheRootOfTheWorld) {
  Feedback f("topk:0.05,clip=2,scope=global");
  f.feedback->begin_generation(4);
  const auto g = f.gradient(1);
  const auto sent = f.send(g, 1);
  double norm = 0;
  const auto all = added(sent, f.residual());
  for (const float v : all) norm += double(v) * v;
  EXPECT_NEAR(std::sqrt(norm), 1.0, 1e-5);  // 2 / sqrt(4)
  EXPECT_NEAR(all[10] / g[10], all[900] / g[900], 1e-6);
  Feedback small("topk:0.05,clip=1e9");
  const auto unclipped = small.send(g, 1);
  EXPECT_TRUE(same_bits(added(unclipped, small.residual()), g));
}

TEST(ErrorFeedback, WarmUpLowersTheRatioByQuarters) {
  Feedback f("topk:0.001,warmup=8");
  std::vector<std::uint32_t> shares;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    shares.push_back(f.feedback->ratio().billionths);
    f.send(f.gradient(round), round);
    f.feedback->commit();
  }
  EXPECT_THAT(shares,
              ::testing::ElementsAre(250'000'000, 250'000'000, 62'500'000, 62'500'000, 15'625'000,
                                     15'625'000, 3'906'250, 3'906'250, 1'000'000, 1'000'000));
  EXPECT_EQ(Feedback("topk:0.3,warmup=8").feedback->ratio().billionths, 300'000'000u);
}

TEST(ErrorFeedback, ANewGenerationKeepsOrDropsTheResidualAsTheSpecSays) {
  for (const bool carry : {true, false}) {
    Feedback f(carry ? "topk:0.01,momentum=0.9" : "topk:0.01,momentum=0.9,generation=reset");
    f.send(f.gradient(1), 1);
    const auto residual = f.residual();
    const auto momentum = f.momentum();
    EXPECT_GT(f.feedback->residual_norm(), 0);
    f.feedback->begin_generation(3);
    const std::vector<float> zeros(f.size(), 0.0f);
    EXPECT_TRUE(same_bits(f.residual(), carry ? residual : zeros));
    EXPECT_TRUE(same_bits(f.momentum(), carry ? momentum : zeros));
  }
}

TEST(ErrorFeedback, RefusesAStateThatIsNotItsOwn) {
  Feedback f("topk:0.01"), with("topk:0.01,momentum=0.9");
  f.send(f.gradient(1), 1);
  const auto before = f.residual();
  std::vector<float> other(f.size() - 1);
  EXPECT_FALSE(f.feedback->restore({other, {}, 0}).ok());
  EXPECT_FALSE(f.feedback->restore(with.feedback->state()).ok());
  EXPECT_FALSE(with.feedback->restore(f.feedback->state()).ok());
  other.resize(f.size());
  other[3] = kNan;
  const Status refused = f.feedback->restore({other, {}, 0});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("not finite"));
  EXPECT_TRUE(same_bits(f.residual(), before));
}

TEST(ErrorFeedback, NormIsThatOfTheResidual) {
  Feedback f("topk:0.01");
  f.send(f.gradient(1), 1);
  double sum = 0;
  for (const float v : f.residual()) sum += double(v) * v;
  EXPECT_NEAR(f.feedback->residual_norm(), std::sqrt(sum), 1e-9 * std::sqrt(sum));
}

TEST(ErrorFeedback, NeedsASpecWithFeedback) {
  const ChunkPlan plan = make_plan();
  for (const std::string spec :
       {"f32", "int8", "topk:0.01,feedback=off", "sign:feedback=off", "topk:2"})
    EXPECT_FALSE(ErrorFeedback::make(spec, plan).ok()) << spec;
}

}  // namespace
}  // namespace centroid::codec_feedback_test
