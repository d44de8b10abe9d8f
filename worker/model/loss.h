#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/model/model.h"

namespace centroid::worker {

/// Softmax cross-entropy of logits + bias over `labels.size()` rows; the largest logit is
/// subtracted first, so nothing overflows.
///
/// shape   bias in [classes]; logits in [rows, classes], overwritten by the gradient of share *
///         (sum of losses) when `needs_gradient`
/// fails   a label >= classes is a bug of the caller: aborts
/// note    if several logits are the largest, the first is the prediction; a row with a NaN counts
///         as wrong
StepResult softmax_cross_entropy(std::span<const std::uint32_t> labels, std::size_t classes,
                                 const float* bias, float share, float* logits,
                                 bool needs_gradient);

}  // namespace centroid::worker
