#include "worker/exchange/step_guard.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

/// What a worker learns of a step among peers before the round counts.
namespace centroid::worker {
namespace {

constexpr std::size_t kElements = 96;

class StepGuardTest : public testing::Test {
 protected:
  /// All parameters are `parameter`.
  void open(const OptimizerConfig& optimizer, double scale_ratio, float parameter) {
    options_.join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {kElements}}};
    terms_.chunk_bytes = 128;
    terms_.plan_hash = ChunkPlan::make(options_.join.manifest, terms_.chunk_bytes).value().hash();
    terms_.fragments = 1;
    terms_.apply_on_worker = true;
    terms_.optimizer = optimizer;
    terms_.scale_ratio = scale_ratio;
    terms_.codec_down = "f32";
    std::ranges::fill(params_, parameter);
    ExchangeMemory memory;
    memory.params = params_;
    model_ = std::make_unique<ModelPlanes>(options_, memory);
    ASSERT_TRUE(model_->open(terms_).ok());
    model_->set_terms(terms_);
  }
  /// Try the step with a mean of `gradient`; the tensor that is refused.
  std::string try_step(float gradient, std::uint32_t world, std::uint64_t contributors = 0) {
    proto::RoundOpen open;
    open.world = world;
    open.count = contributors;
    std::ranges::fill(model_->results(), gradient);
    return StepGuard(*model_, open).refused_tensor(!is_moderate(gradient), nullptr);
  }

  ClusterOptions options_;
  proto::JoinReply terms_;
  std::vector<float> params_ = std::vector<float>(kElements);
  std::unique_ptr<ModelPlanes> model_;
};

TEST_F(StepGuardTest, TheRateGoesByTheWorkers) {
  open({.name = "sgd", .learning_rate = 1e38}, 1, 0);
  EXPECT_EQ(try_step(1, 3), "");  // 3e38
  EXPECT_EQ(try_step(1, 4), "w");
  EXPECT_EQ(try_step(1, 4, 3), "") << "the fourth has no samples";
  EXPECT_EQ(try_step(1, 4, 4), "w");
}

/// As in the test of HostedModel.
TEST_F(StepGuardTest, WhatWasTriedAndNotMadeSaysNothingOfTheNextStep) {
  open({.name = "sgd", .learning_rate = 1, .weight_decay = 1}, 1, 3e38F);
  EXPECT_EQ(try_step(1, 1), "");
  EXPECT_EQ(try_step(1, 10), "w");
  EXPECT_EQ(try_step(1, 1), "");
  model_->set_moderate(0, true);
  EXPECT_EQ(try_step(1, 1), "") << "without a trial";
  EXPECT_FALSE(model_->take_tried());
}

/// So the mean needs no look of its own.
TEST_F(StepGuardTest, AMeanThatIsNotFiniteIsFoundByTheTrialOfEveryRule) {
  for (const std::string& name : optimizer_names())
    for (const float gradient : {HUGE_VALF, -HUGE_VALF, std::nanf("")})
      for (const double rate : {0.5, 1e-30}) {
        SCOPED_TRACE(name + ", " + std::to_string(gradient));
        open({.name = name, .learning_rate = rate}, 0, 2);
        EXPECT_TRUE(StepGuard(*model_, proto::RoundOpen()).looks_at_mean());
        EXPECT_EQ(try_step(gradient, 1), "w");
      }
  open({.name = "sgd", .learning_rate = 0.5, .clip_norm = 1}, 0, 2);
  EXPECT_FALSE(StepGuard(*model_, proto::RoundOpen()).looks_at_mean());
  open({.name = "sgd", .learning_rate = 0.5}, 0, 2);
  model_->set_moderate(0, true);
  EXPECT_FALSE(StepGuard(*model_, proto::RoundOpen()).looks_at_mean()) << "it needs no trial";
}

TEST_F(StepGuardTest, TheModelStaysAsItIs) {
  open({.name = "momentum", .learning_rate = 0.5}, 0, 2);
  EXPECT_EQ(try_step(1, 1), "");
  EXPECT_EQ(params_, std::vector<float>(kElements, 2));
  EXPECT_EQ(model_->slots()[0], std::vector<float>(kElements, 0));
  EXPECT_EQ(model_->results()[0], 1);
}

}  // namespace
}  // namespace centroid::worker
