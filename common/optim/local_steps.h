#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/optim/optimizer_config.h"

namespace centroid {

/// Settings of rounds of local steps (docs/how-to/diloco.md).
struct LocalStepsConfig {
  std::uint64_t count = 1;      ///< steps between two contributions of a tensor; 1: gradients
  std::uint64_t fragments = 1;  ///< sets of tensors that are contributed in turn
  std::uint64_t overlap = 0;    ///< steps that are made after the contribution
  std::string outer = "nesterov";

  std::uint64_t steps_per_round() const { return count / fragments; }
};

/// Check the settings, and set the optimizer that `outer` selects: "nesterov" with rate 0.7 and
/// momentum 0.9, "average" for the mean of the parameters, "optimizer" for the one that is set.
/// fails   invalid_argument: names the wrong setting, also an optimizer that would have no effect
/// source  Douillard et al. 2023, "DiLoCo", section 3
Status use_local_steps(const LocalStepsConfig& local, OptimizerConfig& optimizer);

}  // namespace centroid
