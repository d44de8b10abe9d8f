#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/optim/rules.h"
#include "common/tensor/finite.h"

namespace centroid {

/// Whether a step is finite for certain if the gradient and the parameters are moderate
/// (is_moderate) and the slots come from moderate gradients. Then no trial is needed.
bool is_bounded(const rules::Step& rule);

/// Makes steps on copies, to learn what they would make of parameters and slots. For steps that
/// cannot be undone.
///
/// cost    a step, and 256 KiB; callers ask `is_bounded` first
/// thread  one
class StepTrial {
 public:
  /// Of the parameters and slots after Optimizer::step with `gradient` times `factor`.
  Magnitude step(const rules::Step& rule, std::span<const float> params,
                 std::span<const float> gradient, std::span<const std::span<const float>> slots,
                 float factor = 1);
  /// Of the parameters after Optimizer::step_at.
  Magnitude step_at(const rules::Step& rule, std::span<const std::uint32_t> index,
                    std::span<const float> gradient, std::span<const float> params);

 private:
  std::vector<float> params_, gradient_;
  std::array<std::vector<float>, 2> slots_;
};

}  // namespace centroid
