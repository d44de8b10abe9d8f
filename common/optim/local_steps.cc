#include "common/optim/local_steps.h"

namespace centroid {

Status use_local_steps(const LocalStepsConfig& local, OptimizerConfig& optimizer) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  if (local.count == 1) {
    if (local.fragments != 1 || local.overlap != 0)
      return refuse(
          "fragments and overlap are for rounds of local steps: set local_steps, or "
          "leave fragments 1 and overlap 0");
    if (local.outer == "average")
      return refuse(
          "outer average is for rounds of local steps: set local_steps to 2 or more, or leave "
          "outer "
          "out");
    return {};
  }
  const std::string steps = "local_steps " + std::to_string(local.count);
  if (local.count % local.fragments != 0)
    return refuse(steps + " is no multiple of fragments " + std::to_string(local.fragments) +
                  ": a fragment is contributed every local_steps / fragments steps");
  if (local.overlap >= local.steps_per_round())
    return refuse(
        "overlap " + std::to_string(local.overlap) + " must be below local_steps / fragments, " +
        std::to_string(local.steps_per_round()) + ": a round ends before the next begins");
  if (local.outer == "optimizer") return {};
  OptimizerConfig wanted = optimizer;
  wanted.name = local.outer == "average" ? "mean" : "nesterov";
  wanted.learning_rate = local.outer == "average" ? 1.0 : 0.7;
  wanted.momentum = 0.9;
  wanted.weight_decay = 0;
  const auto is_same = [&](const OptimizerConfig& other) {
    return optimizer.name == other.name && optimizer.learning_rate == other.learning_rate &&
           optimizer.momentum == other.momentum && optimizer.weight_decay == other.weight_decay;
  };
  if (!is_same(OptimizerConfig()) && !is_same(wanted))
    return refuse(steps + " with outer " + local.outer +
                  " sets the optimizer by itself: leave optimizer, lr, momentum and "
                  "weight_decay, or take outer optimizer");
  optimizer = wanted;
  return {};
}

}  // namespace centroid
