#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/optim/step_trial.h"
#include "worker/exchange/model_planes.h"
#include "worker/exchange/sparse_mean.h"

namespace centroid::worker {

/// Learns before a round counts whether its step is finite. Workers that add among themselves make
/// the step when the round counts, and cannot undo it.
///
/// thread  one, while nothing else changes the model
class StepGuard {
 public:
  StepGuard(ModelPlanes& model, const proto::RoundOpen& open);

  /// A tensor of which parameters or slots would not be finite; empty: there is none.
  /// `is_large`: not all of the mean is known to be moderate. `listed`: the mean, where it is
  /// sparse
  std::string refused_tensor(bool is_large, const SparseMean* listed);
  /// Whether that tries the step in any case, and so finds a mean that is not finite: no rule makes
  /// finite parameters and slots of it. Clipped, it spoils all tensors: the first would be named.
  bool looks_at_mean() const {
    return optimizer_ && always_tries() && optimizer_->config().clip_norm == 0;
  }

 private:
  bool always_tries() const { return !model_.is_moderate(fragment_) || !is_bounded(rule_); }
  Magnitude try_step(std::uint64_t position, std::span<const float> mean, bool is_buffer);
  Magnitude try_part(const SparseMean& mean, const SparseMean::Part& part);

  ModelPlanes& model_;
  const std::uint32_t fragment_;
  std::unique_ptr<Optimizer> optimizer_;  ///< nullptr: the step itself will fail
  rules::Step rule_;
  float factor_ = 1;
  StepTrial trial_;
  std::vector<float> dense_;  ///< a part of the mean
};

/// What the mean of a fragment is to be multiplied with, so that its norm keeps the bound.
float clip_factor_of(const ModelPlanes& model, const FragmentPlan::Fragment& fragment);

}  // namespace centroid::worker
