#include "common/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/optim/step_trial.h"
#include "common/tensor/multiversion.h"
#include "tests/support/optimizer_oracle.h"

namespace centroid::optimizer_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5;

std::unique_ptr<Optimizer> made(const OptimizerConfig& config) {
  auto optimizer = make_optimizer(config);
  EXPECT_TRUE(optimizer.ok());
  return std::move(optimizer).value();
}

/// Parameters and slots of one run.
struct State {
  explicit State(const Optimizer& optimizer, std::size_t n)
      : params(n), slots(optimizer.slots(), std::vector<float>(n, 0.0f)) {}

  std::vector<std::span<float>> slot_spans(std::size_t begin, std::size_t end) {
    std::vector<std::span<float>> spans;
    for (auto& slot : slots) spans.push_back(std::span(slot).subspan(begin, end - begin));
    return spans;
  }
  bool operator==(const State& other) const {  // by bits
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    for (std::size_t s = 0; s < slots.size(); ++s)
      if (!same(slots[s], other.slots[s])) return false;
    return same(params, other.params);
  }

  std::vector<float> params;
  std::vector<std::vector<float>> slots;
};

void fill_normal(std::vector<float>& x, std::uint64_t stream) {
  CounterRng rng(kSeed, stream);
  for (float& v : x) v = static_cast<float>(rng.normal());
}

class OptimizerConformance : public ::testing::TestWithParam<OptimizerConfig> {};

TEST_P(OptimizerConformance, FollowsTheFormulasInDoubleOverAThousandSteps) {
  constexpr std::size_t kElements = 997;
  const auto optimizer = made(GetParam());
  State state(*optimizer, kElements);
  fill_normal(state.params, 0);
  std::vector<OptimizerOracle> oracles(kElements, OptimizerOracle{GetParam()});
  for (std::size_t i = 0; i < kElements; ++i) oracles[i].p = static_cast<double>(state.params[i]);

  std::vector<float> gradient(kElements);
  for (int t = 1; t <= 1000; ++t) {
    fill_normal(gradient, static_cast<std::uint64_t>(t));
    const auto slots = state.slot_spans(0, kElements);
    optimizer->step(static_cast<std::uint64_t>(t), state.params, gradient, slots, state.params);
    for (std::size_t i = 0; i < kElements; ++i)
      oracles[i].step(t, static_cast<double>(gradient[i]));
  }
  double error = 0, length = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    error += std::pow(static_cast<double>(state.params[i]) - oracles[i].p, 2);
    length += std::pow(oracles[i].p, 2);
  }
  const double relative = std::sqrt(error / length);
  std::printf("%s: ||p - p64|| / ||p64|| = %.2e\n", GetParam().name.c_str(), relative);
  EXPECT_LE(relative, 1e-6);
  EXPECT_GT(length, 0.01);
}

// All variants and slicings against the whole in the baseline variant.
State run_in_slices(const Optimizer& optimizer, std::size_t n,
                    const std::vector<std::size_t>& cuts) {
  State state(optimizer, n);
  fill_normal(state.params, 0);
  std::vector<float> gradient(n);
  for (std::uint64_t t = 1; t <= 20; ++t) {
    fill_normal(gradient, t);
    std::size_t begin = 0;
    for (const std::size_t end : cuts) {
      const auto slots = state.slot_spans(begin, end);
      const auto params = std::span(state.params).subspan(begin, end - begin);
      optimizer.step(t, params, std::span(gradient).subspan(begin, end - begin), slots, params);
      begin = end;
    }
  }
  return state;
}

TEST_P(OptimizerConformance, SlicesAndInstructionSetsGiveTheBitsOfTheWhole) {
  constexpr std::size_t kElements = 1003;
  const auto optimizer = made(GetParam());
  const Isa before = limit_isa(Isa::kBaseline);
  const State whole = run_in_slices(*optimizer, kElements, {kElements});
  for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    limit_isa(isa);
    EXPECT_TRUE(run_in_slices(*optimizer, kElements, {kElements}) == whole) << to_string(isa);
    EXPECT_TRUE(run_in_slices(*optimizer, kElements, {0, 1, 18, 333, 334, 1000, kElements}) ==
                whole)
        << to_string(isa);
  }
  limit_isa(before);
}

TEST_P(OptimizerConformance, OutMayBeParamsOrGradientOrNeither) {
  constexpr std::size_t kElements = 203;
  const auto optimizer = made(GetParam());
  for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    const Isa before = limit_isa(isa);
    std::vector<float> gradient(kElements);
    fill_normal(gradient, 1);
    const auto run = [&](int where) {
      State state(*optimizer, kElements);
      fill_normal(state.params, 0);
      for (std::size_t s = 0; s < state.slots.size(); ++s) state.slots[s].assign(kElements, 0.5f);
      auto params = state.params;
      auto moved = gradient;
      std::vector<float> separate(kElements);
      auto& out = where == 0 ? separate : where == 1 ? params : moved;
      const auto slots = state.slot_spans(0, kElements);
      optimizer->step(3, params, moved, slots, out);
      state.params = out;
      return state;
    };
    const State separate = run(0);
    EXPECT_TRUE(run(1) == separate) << "out is params";
    EXPECT_TRUE(run(2) == separate) << "out is gradient";
    limit_isa(before);
  }
}

TEST_P(OptimizerConformance, NothingToDoIsFine) {
  const auto optimizer = made(GetParam());
  State state(*optimizer, 0);
  const auto slots = state.slot_spans(0, 0);
  optimizer->step(1, {}, {}, slots, {});
}

OptimizerConfig with(const std::string& name, double weight_decay) {
  OptimizerConfig config;
  config.name = name;
  config.weight_decay = weight_decay;
  return config;
}

OptimizerConfig with_schedule(const std::string& name, const std::string& schedule) {
  OptimizerConfig config = with(name, 0.01);
  config.schedule = schedule;
  return config;
}

OptimizerConfig with_l1(double l1, const std::string& schedule = "constant") {
  OptimizerConfig config = with("ftrl", 0.01);
  config.learning_rate = 0.1;
  config.l1 = l1;
  config.schedule = schedule;
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerConformance,
    ::testing::Values(with("sgd", 0), with("sgd", 0.01), with("momentum", 0),
                      with("momentum", 0.01), with("nesterov", 0), with("nesterov", 0.01),
                      with("adam", 0), with("adam", 0.01), with("adamw", 0), with("adamw", 0.01),
                      with("adagrad", 0), with("adagrad", 0.01), with("yogi", 0),
                      with("yogi", 0.01), with_schedule("sgd", "step:every=100,factor=0.5"),
                      with_schedule("momentum", "linear:rounds=1200"),
                      with_schedule("nesterov", "cosine:rounds=900,warmup=50,floor=0.1"),
                      with_schedule("adagrad", "onecycle:rounds=1000,start=0"),
                      with_schedule("adam", "step:every=300,factor=0.1"),
                      with_schedule("adamw", "cosine:rounds=900,warmup=50,floor=0.1"),
                      with_schedule("yogi", "linear:rounds=1200"), with("mean", 0), with("ftrl", 0),
                      with("ftrl", 0.01), with_l1(0.5), with_l1(2),
                      with_l1(0, "step:every=100,factor=0.5"),
                      with_l1(0.5, "cosine:rounds=900,warmup=50,floor=0.1"),
                      with_l1(2, "linear:rounds=600"), with_l1(0, "onecycle:rounds=1000,start=0")),
    [](const auto& test) {
      const std::string& schedule = test.param.schedule;
      return test.param.name +
             (schedule == "constant" ? "" : "_" + schedule.substr(0, schedule.find(':'))) +
             (test.param.weight_decay > 0 ? "_with_decay" : "") +
             (test.param.l1 > 1   ? "_with_strong_l1"
              : test.param.l1 > 0 ? "_with_l1"
                                  : "");
    });

TEST(Optimizers, SlotsHaveTheNamesOfPyTorch) {
  EXPECT_TRUE(made(with("sgd", 0))->slot_names().empty());
  EXPECT_THAT(made(with("momentum", 0))->slot_names(), ::testing::ElementsAre("momentum_buffer"));
  EXPECT_THAT(made(with("nesterov", 0))->slot_names(), ::testing::ElementsAre("momentum_buffer"));
  EXPECT_THAT(made(with("adamw", 0))->slot_names(),
              ::testing::ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_EQ(made(with("adam", 0.5))->config().weight_decay, 0.5);
}

TEST(Optimizers, OneStepByHand) {
  const auto step = [](const std::string& name, double decay, std::uint64_t t, float slot) {
    OptimizerConfig config = with(name, decay);
    config.learning_rate = 0.5;
    config.momentum = 0.25;
    const auto optimizer = made(config);
    State state(*optimizer, 1);
    state.params[0] = 2.0f;
    for (auto& s : state.slots) s[0] = slot;
    const std::vector<float> gradient = {4.0f};
    const auto slots = state.slot_spans(0, 1);
    optimizer->step(t, state.params, gradient, slots, state.params);
    return state.params[0];
  };
  EXPECT_EQ(step("sgd", 0, 1, 0), 0.0f);              // 2 - 0.5*4
  EXPECT_EQ(step("sgd", 0.5, 1, 0), -0.5f);           // g = 4 + 0.5*2
  EXPECT_EQ(step("momentum", 0, 2, 8.0f), -1.0f);     // v = 0.25*8 + 4
  EXPECT_EQ(step("nesterov", 0, 2, 8.0f), -0.75f);    // g + 0.25*6 = 5.5
  EXPECT_NEAR(step("adam", 0, 1, 0), 1.5f, 1e-6);     // first step is the learning rate
  EXPECT_NEAR(step("adamw", 0.5, 1, 0), 1.0f, 1e-6);  // 2 * (1 - 0.25) - 0.5
}

TEST(Optimizers, ABufferLosesItsChangeAndNothingElse) {
  const std::vector<float> params{1, -2, 0.1F, 1e30F}, change{0.25F, -1, 0.1F, 1};
  std::vector<float> out(4);
  step_buffer(params, change, out);
  EXPECT_EQ(out, (std::vector<float>{0.75F, -1, 0, 1e30F}));
  std::vector<float> in_place = change;
  step_buffer(params, in_place, in_place);
  EXPECT_EQ(in_place, out);
}

TEST(Optimizers, WrongSettingsAreNamed) {
  const auto message = [](void (*change)(OptimizerConfig&)) {
    OptimizerConfig config;
    change(config);
    const auto optimizer = make_optimizer(config);
    EXPECT_FALSE(optimizer.ok());
    if (optimizer.ok()) return std::string();
    EXPECT_EQ(optimizer.error().code(), ErrorCode::kInvalidArgument);
    return optimizer.error().message();
  };
  EXPECT_THAT(message([](OptimizerConfig& c) { c.name = "lion"; }),
              HasSubstr("\"lion\" is not one of sgd, momentum, nesterov, adagrad, adam, adamw, "
                        "yogi, ftrl, mean"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.learning_rate = -1; }),
              HasSubstr("learning_rate"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.learning_rate = std::nan(""); }),
              HasSubstr("learning_rate"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.momentum = 1; }), HasSubstr("momentum"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.beta1 = -0.1; }), HasSubstr("beta1"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.beta2 = 1.5; }), HasSubstr("beta2"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.epsilon = -1; }), HasSubstr("epsilon"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.weight_decay = HUGE_VAL; }),
              HasSubstr("weight_decay"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.clip_norm = -1; }), HasSubstr("clip_norm"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.l1 = -1; }), HasSubstr("l1"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.ftrl_beta = 0; }), HasSubstr("ftrl_beta"));
  EXPECT_THAT(message([](OptimizerConfig& c) { c.schedule = "cosine"; }), HasSubstr("rounds"));
  EXPECT_THAT(message([](OptimizerConfig& c) {
                c.name = "mean";
                c.schedule = "constant:warmup=3";
              }),
              HasSubstr("leave schedule constant"));
  EXPECT_THAT(message([](OptimizerConfig& c) {
                c.name = "mean";
                c.weight_decay = 0.1;
              }),
              HasSubstr("weight_decay 0"));
}

TEST(Optimizers, FtrlWithL1SetsParametersToZeroAndStaysWithTheFormulas) {
  constexpr std::size_t kElements = 97;
  for (const std::string schedule : {"constant", "step:every=30,factor=0.9"}) {
    OptimizerConfig config = with("ftrl", 0.01);
    config.learning_rate = 0.1;
    config.l1 = 2.0;
    config.schedule = schedule;
    const auto optimizer = made(config);
    State state(*optimizer, kElements);
    fill_normal(state.params, 0);
    state.params[0] = 0;
    std::vector<OptimizerOracle> oracles(kElements, OptimizerOracle{config});
    for (std::size_t i = 0; i < kElements; ++i) oracles[i].p = static_cast<double>(state.params[i]);
    std::vector<float> gradient(kElements);
    std::size_t zeros = 0;
    for (int t = 1; t <= 1000; ++t) {
      fill_normal(gradient, static_cast<std::uint64_t>(t));
      const auto slots = state.slot_spans(0, kElements);
      optimizer->step(static_cast<std::uint64_t>(t), state.params, gradient, slots, state.params);
      for (std::size_t i = 0; i < kElements; ++i) {
        oracles[i].step(t, static_cast<double>(gradient[i]));
        ASSERT_NEAR(static_cast<double>(state.params[i]), oracles[i].p, 1e-5) << i << " at " << t;
        zeros += state.params[i] == 0;
      }
    }
    EXPECT_GT(zeros, 200u);
    EXPECT_LT(zeros, 1000 * kElements / 2);
  }
}

// A live change, a resumed job, a replayed segment: another optimizer goes on with the slots.
TEST(Optimizers, FtrlGoesOnWithAnotherRateAsTheFormulas) {
  constexpr std::size_t kElements = 97;
  for (const double l1 : {0.0, 0.5}) {
    OptimizerConfig config = with("ftrl", 0.01);
    config.l1 = l1;
    State state(*made(config), kElements);
    fill_normal(state.params, 0);
    std::vector<OptimizerOracle> oracles(kElements, OptimizerOracle{config});
    for (std::size_t i = 0; i < kElements; ++i) oracles[i].p = static_cast<double>(state.params[i]);
    std::vector<float> gradient(kElements);
    int t = 0;
    for (const double rate : {0.1, 0.01, 0.0, 0.5}) {
      config.learning_rate = rate > 0 ? rate : 1;
      auto optimizer = made(config);
      optimizer->set_rate_factor(rate > 0 ? 1 : 0);
      const State before = state;
      for (int k = 0; k < 250; ++k) {
        fill_normal(gradient, static_cast<std::uint64_t>(++t));
        const auto slots = state.slot_spans(0, kElements);
        optimizer->step(static_cast<std::uint64_t>(t), state.params, gradient, slots, state.params);
        for (std::size_t i = 0; i < kElements; ++i)
          oracles[i].ftrl(static_cast<double>(gradient[i]), rate);
      }
      if (rate == 0) {
        EXPECT_EQ(state.params, before.params);
      }
    }
    double error = 0, length = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      error += std::pow(static_cast<double>(state.params[i]) - oracles[i].p, 2);
      length += std::pow(oracles[i].p, 2);
    }
    EXPECT_LE(std::sqrt(error / length), 1e-6) << l1;
  }
}

TEST(Optimizers, FtrlWithAnotherRateAndNoGradientLeavesTheParametersAsTheyAre) {
  OptimizerConfig config = with("ftrl", 0.01);
  config.l1 = 0.5;
  State state(*made(config), 4);
  state.params = {0.25f, -3.0f, 0.0f, 1e-3f};
  const auto before = state.params;
  const std::vector<float> nothing(4);
  std::uint64_t t = 0;
  for (const double rate : {0.1, 100.0, 1e-6, 1e-20, 0.1}) {
    config.learning_rate = rate;
    const auto slots = state.slot_spans(0, 4);
    made(config)->step(++t, state.params, nothing, slots, state.params);
    EXPECT_EQ(state.params, before) << rate;
  }
}

// In every element by itself, at every rate, whether L1 holds the parameter at 0 or not.
TEST(Optimizers, FtrlHidesNoNumberThatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Isa isa : {Isa::kBaseline, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    const Isa was = limit_isa(isa);
    for (const double l1 : {0.0, 10.0}) {
      for (const double factor : {1.0, 0.0}) {
        for (const float bad : {nan, infinite, -infinite, 1e25f}) {
          OptimizerConfig config = with("ftrl", 0);
          config.l1 = l1;
          const auto optimizer = made(config);
          optimizer->set_rate_factor(factor);
          State state(*optimizer, 40);
          for (std::size_t i = 0; i < 40; ++i)
            state.params[i] = static_cast<float>(static_cast<int>(i % 3) - 1);
          std::vector<float> gradient(40, 0.5f);
          for (std::size_t i = 10; i < 13; ++i) gradient[i] = bad;
          const auto slots = state.slot_spans(0, 40);
          for (std::uint64_t t = 1; t <= 3; ++t) {
            optimizer->step(t, state.params, gradient, slots, state.params);
            gradient.assign(40, 0.5f);
          }
          for (std::size_t i = 0; i < 40; ++i)
            EXPECT_EQ(std::isnan(state.params[i]), i >= 10 && i < 13)
                << i << " " << bad << " l1 " << l1 << " factor " << factor;
        }
      }
    }
    limit_isa(was);
  }
}

TEST(Optimizers, FtrlBeginsAtTheParametersItIsGiven) {
  for (const double l1 : {0.0, 0.5}) {
    OptimizerConfig config = with("ftrl", 0.01);
    config.l1 = l1;
    const auto optimizer = made(config);
    State state(*optimizer, 4);
    state.params = {0.25f, -3.0f, 0.0f, 1e-3f};
    const auto before = state.params;
    const std::vector<float> nothing(4);
    const auto slots = state.slot_spans(0, 4);
    optimizer->step(1, state.params, nothing, slots, state.params);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(state.params[i], before[i], 1e-6);
  }
}

TEST(Optimizers, TheScheduleScalesEachStep) {
  OptimizerConfig config = with("sgd", 0);
  config.learning_rate = 0.5;
  config.schedule = "step:every=2,factor=0.5";
  const auto optimizer = made(config);
  float param = 16;
  const float gradient = 2;
  std::vector<float> seen;
  for (std::uint64_t t = 1; t <= 5; ++t) {
    optimizer->step(t, {&param, 1}, {&gradient, 1}, {}, {&param, 1});
    seen.push_back(param);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(15, 14, 13.5, 13, 12.75));
  EXPECT_EQ(optimizer->learning_rate(5), 0.125);
}

TEST(Optimizers, AStepWhereTheGradientIsHasTheBitsOfAStepEverywhere) {
  constexpr std::size_t kElements = 3000;
  for (const std::string name : {"sgd", "mean"}) {
    OptimizerConfig config;
    config.name = name;
    const auto optimizer = made(config);
    ASSERT_TRUE(optimizer->ignores_zeros());
    CounterRng rng(kSeed);
    std::vector<float> dense(kElements), gradient(kElements), values;
    std::vector<std::uint32_t> index;
    for (float& p : dense) p = static_cast<float>(rng.normal());
    dense[1] = -0.0f;
    for (std::uint32_t i = 0; i < kElements; ++i) {
      if (rng.below(3) != 0) continue;
      index.push_back(i);
      values.push_back(gradient[i] = static_cast<float>(rng.normal()));
    }
    std::vector<float> sparse = dense;
    optimizer->step(1, dense, gradient, {}, dense);
    optimizer->step_at(1, index, values, sparse);
    EXPECT_EQ(0, std::memcmp(dense.data(), sparse.data(), kElements * sizeof(float))) << name;
  }
  OptimizerConfig config;
  config.weight_decay = 0.1;
  EXPECT_FALSE(made(config)->ignores_zeros());
  config.weight_decay = 0;
  config.name = "momentum";
  EXPECT_FALSE(made(config)->ignores_zeros());
}

/// `count` numbers of any magnitude below `most`, 0 among them.
std::vector<float> of_any_magnitude(CounterRng& rng, std::size_t count, double most) {
  std::vector<float> out(count);
  for (float& x : out) {
    const double magnitude = most * std::exp2(-static_cast<double>(rng.below(80)));
    if (rng.below(8) != 0) x = static_cast<float>((rng.below(2) ? 1 : -1) * magnitude);
  }
  return out;
}

TEST(StepTrial, ForeseesEveryStepAndChangesNothing) {
  constexpr std::size_t kElements = 40000;  // more than a block
  StepTrial trial;
  std::array<int, 3> found{};
  for (const std::string& name : optimizer_names())
    for (const double most : {1.0, 1e15, 3e38}) {
      const auto optimizer = made(with(name, 0));
      State state(*optimizer, kElements);
      CounterRng rng(kSeed, static_cast<std::uint64_t>(std::log2(most)));
      state.params = of_any_magnitude(rng, kElements, 1);
      const auto gradient = of_any_magnitude(rng, kElements, most);
      const State before = state;
      std::vector<std::span<const float>> read(state.slots.begin(), state.slots.end());
      const Magnitude foreseen = trial.step(optimizer->at(1), state.params, gradient, read);
      EXPECT_TRUE(state == before) << name;
      const auto slots = state.slot_spans(0, kElements);
      optimizer->step(1, state.params, gradient, slots, state.params);
      Magnitude made = magnitude_of(state.params);
      for (const auto& slot : state.slots) made = std::max(made, magnitude_of(slot));
      EXPECT_EQ(foreseen, made) << name << " " << most;
      ++found[static_cast<std::size_t>(made)];
    }
  for (const int count : found) EXPECT_GT(count, 0);
}

TEST(StepTrial, ABoundedRuleMakesOnlyFiniteNumbersOfModerateOnes) {
  constexpr std::size_t kElements = 3000;
  for (const std::string& name : optimizer_names())
    for (const double decay : {0.0, 0.1}) {
      if (name == "mean" && decay > 0) continue;
      OptimizerConfig config = with(name, decay);
      config.learning_rate = 1;
      config.epsilon = config.ftrl_beta = 1e-12;
      const auto optimizer = made(config);
      State state(*optimizer, kElements);
      CounterRng rng(kSeed);
      for (std::uint64_t step = 1; step <= 200; ++step) {
        ASSERT_TRUE(is_bounded(optimizer->at(step))) << name;
        // Any that earlier steps may make; those of ftrl and its slots belong together.
        if (name != "ftrl" || step == 1) state.params = of_any_magnitude(rng, kElements, 4e9);
        const auto gradient = of_any_magnitude(rng, kElements, step % 3 == 0 ? 4e9 : 1);
        const auto slots = state.slot_spans(0, kElements);
        optimizer->step(step, state.params, gradient, slots, state.params);
        ASSERT_TRUE(is_finite(state.params)) << name << " in step " << step;
        for (const auto& slot : state.slots) ASSERT_TRUE(is_finite(slot)) << name;
      }
    }
}

TEST(StepTrial, EachLimitOfABoundedRuleCounts) {
  constexpr float kRate = 0x1p20F, kDecay = 0x1p10F, kL1 = 0x1p32F, kEpsilon = 0x1p-40F;
  EXPECT_TRUE(is_bounded(rules::Sgd{.rate = kRate, .decay = kDecay}));
  EXPECT_FALSE(is_bounded(rules::Sgd{.rate = 2 * kRate, .decay = kDecay}));
  EXPECT_FALSE(is_bounded(rules::Sgd{.rate = kRate, .decay = 2 * kDecay}));
  const rules::Adagrad adagrad{.rate = kRate, .decay = kDecay, .epsilon = kEpsilon};
  EXPECT_TRUE(is_bounded(adagrad));
  EXPECT_FALSE(is_bounded(rules::Adagrad{kRate, kDecay, kEpsilon / 2}));
  const rules::Ftrl ftrl{.inverse_rate = 1, .moves = 1, .beta = kL1, .l1 = kL1, .l2 = kDecay};
  EXPECT_TRUE(is_bounded(ftrl));
  for (float rules::Ftrl::* const field :
       {&rules::Ftrl::beta, &rules::Ftrl::l1, &rules::Ftrl::l2}) {
    rules::Ftrl beyond = ftrl;
    beyond.*field *= 2;
    EXPECT_FALSE(is_bounded(beyond));
  }
  rules::Ftrl divides_by_little = ftrl;
  divides_by_little.beta = kEpsilon / 2;
  EXPECT_FALSE(is_bounded(divides_by_little));
}

TEST(StepTrial, RatesThatAreNotBoundedAreToBeTried) {
  OptimizerConfig config = with("adam", 0);
  EXPECT_TRUE(is_bounded(made(config)->at(1)));
  config.epsilon = 0;  // 0 / 0
  EXPECT_FALSE(is_bounded(made(config)->at(1)));
  for (const std::string& name : optimizer_names()) {
    if (name == "mean") continue;
    config = with(name, 0);
    config.learning_rate = name == "ftrl" ? 1e-14 : 1e39;
    EXPECT_FALSE(is_bounded(made(config)->at(1))) << name;
  }
}

/// So a trial at the rate of all workers lets no step pass that is not finite at that of some.
TEST(StepTrial, AStepThatIsFiniteAtARateIsFiniteAtSmallerOnes) {
  constexpr std::size_t kElements = 4000;
  std::array<int, 2> found{};
  for (const std::string& name : optimizer_names())
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      if (name == "mean" || name == "ftrl") continue;  // without lr_scale_ratio
      CounterRng rng(seed);
      OptimizerConfig config = with(name, seed % 2 == 0 ? 0.0 : 0.1);
      config.learning_rate = std::exp2(static_cast<double>(rng.below(120)));
      const auto optimizer = made(config);
      State state(*optimizer, kElements);
      state.params = of_any_magnitude(rng, kElements, 3e38);
      const auto gradient = of_any_magnitude(rng, kElements, seed % 3 == 0 ? 3e38 : 1e15);
      const auto params_of = [&](std::uint64_t workers) {
        State copy = state;
        optimizer->set_rate_factor(rate_factor_of(workers, 1));
        const auto slots = copy.slot_spans(0, kElements);
        optimizer->step(1, copy.params, gradient, slots, copy.params);
        return copy.params;
      };
      const auto all = params_of(8), some = params_of(1 + rng.below(7));
      for (std::size_t i = 0; i < kElements; ++i) {
        ++found[std::isfinite(all[i]) ? 1 : 0];
        ASSERT_LE(std::isfinite(all[i]), std::isfinite(some[i])) << name << ", seed " << seed;
      }
    }
  for (const int count : found) EXPECT_GT(count, 100'000);
}

TEST(StepTrial, LooksOnlyWhereASparseGradientIs) {
  const auto optimizer = made(with("sgd", 0));
  std::vector<float> params{1, 3e38f, 3};
  const std::vector<std::uint32_t> index{0, 2};
  StepTrial trial;
  const auto with_gradient = [&](std::vector<float> gradient) {
    return trial.step_at(optimizer->at(1), index, gradient, params);
  };
  EXPECT_EQ(with_gradient({1, 1}), Magnitude::kModerate);
  EXPECT_EQ(with_gradient({1, 1e30f}), Magnitude::kLarge);
  EXPECT_EQ(with_gradient({INFINITY, 1}), Magnitude::kInfinite);
}

}  // namespace
}  // namespace centroid::optimizer_test
