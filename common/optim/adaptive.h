#pragma once

#include <cstdint>
#include <memory>

#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"

namespace centroid {

/// Rules that scale each parameter's step by what its gradients were.
enum class AdaptiveRule : std::uint8_t { kAdam, kAdamW, kYogi, kAdagrad, kFtrl };

std::unique_ptr<Optimizer> make_adaptive(AdaptiveRule rule, OptimizerConfig config,
                                         LearningRateSchedule schedule);

}  // namespace centroid
