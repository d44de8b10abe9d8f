#pragma once

#include <utility>

#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"

namespace centroid {

/// What all rules share: settings and the learning rate of a step.
class RuleBase : public Optimizer {
 public:
  RuleBase(OptimizerConfig config, LearningRateSchedule schedule)
      : config_(std::move(config)), schedule_(schedule) {}

  const OptimizerConfig& config() const override { return config_; }
  double learning_rate(std::uint64_t step) const override {
    return config_.learning_rate * schedule_.factor(step) * rate_factor();
  }

 private:
  OptimizerConfig config_;
  LearningRateSchedule schedule_;
};

}  // namespace centroid
