#include "worker/exchange/step_guard.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/checkpoint/fault_point.h"
#include "common/optim/norm.h"

namespace centroid::worker {

StepGuard::StepGuard(ModelPlanes& model, const proto::RoundOpen& open)
    : model_(model), fragment_(model.fragments().turn(open.optimizer_step)) {
  OptimizerConfig config = model.terms().optimizer;
  if (open.rates.learning_rate >= 0) {
    config.learning_rate = open.rates.learning_rate;
    config.schedule = "constant";  // it is the one by the schedule
  }
  auto optimizer = make_optimizer(config);
  if (!optimizer.ok()) return;
  optimizer_ = std::move(optimizer).value();
  // Those without samples do not count in the step. An older server does not say how many do: at
  // the rate of all, one that is finite at theirs may be refused.
  const std::uint64_t contributors = open.contributors(model.terms());
  optimizer_->set_rate_factor(rate_factor_of(contributors, model.terms().scale_ratio));
  rule_ = optimizer_->at(model.fragments().steps_before(open.optimizer_step) + 1);
}

std::string StepGuard::refused_tensor(bool is_large, const SparseMean* listed) {
  (void)model_.take_tried();  // of a round that did not count
  if (optimizer_ == nullptr || (!is_large && !always_tries())) return "";
  const ChunkPlan& plan = model_.plan();
  const FragmentPlan::Fragment& fragment = model_.fragments()[fragment_];
  if (optimizer_->config().clip_norm > 0) factor_ = clip_factor_of(model_, fragment);
  Magnitude largest = Magnitude::kModerate;
  if (listed == nullptr) {
    for (const Chunk& chunk : fragment.chunks) {
      const Magnitude made =
          try_step(chunk.position, model_.results().subspan(chunk.position, chunk.elements),
                   plan.is_buffer(chunk));
      if (made == Magnitude::kInfinite) return plan.manifest()[chunk.tensor.value].name;
      largest = std::max(largest, made);
    }
  } else {
    for (const SparseMean::Part& part : listed->parts) {
      const Magnitude made = try_part(*listed, part);
      if (made == Magnitude::kInfinite) {
        const auto chunk = std::ranges::find_if(plan.chunks(), [&](const Chunk& one) {
          return part.position - one.position < one.elements;  // a part may be less than a chunk
        });
        return plan.manifest()[chunk->tensor.value].name;
      }
      largest = std::max(largest, made);
    }
  }
  fault::point("trial.worker");
  model_.set_tried({.is_moderate = largest == Magnitude::kModerate, .clip_factor = factor_});
  return "";
}

/// The step of the parameters from `position` on.
Magnitude StepGuard::try_step(std::uint64_t position, std::span<const float> mean, bool is_buffer) {
  const auto part = [&](std::span<const float> plane) {
    return plane.subspan(position, mean.size());
  };
  if (is_buffer) return trial_.step(rules::kBufferStep, part(model_.params()), mean, {});
  std::vector<std::span<const float>> slots;
  for (const auto& slot : std::as_const(model_).slots()) slots.push_back(part(slot));
  return trial_.step(rule_, part(model_.params()), mean, slots, factor_);
}

Magnitude StepGuard::try_part(const SparseMean& mean, const SparseMean::Part& part) {
  if (!part.is_listed)
    return try_step(part.position, model_.results().subspan(part.position, part.elements),
                    part.is_buffer);
  if (optimizer_->ignores_zeros())
    return trial_.step_at(rule_, std::span(mean.index).subspan(part.first, part.count),
                          std::span(mean.value).subspan(part.first, part.count),
                          model_.params().subspan(part.position, part.elements));
  dense_.resize(part.elements);
  mean.write_out(part, dense_);
  return try_step(part.position, dense_, false);
}

float clip_factor_of(const ModelPlanes& model, const FragmentPlan::Fragment& fragment) {
  PlaneNorm norm;
  for (const Chunk& chunk : fragment.chunks) {
    if (model.plan().is_buffer(chunk)) continue;
    norm.add(chunk.position, model.results().subspan(chunk.position, chunk.elements));
    norm.end_chunk();
  }
  return clip_factor(norm.value(), model.terms().optimizer.clip_norm);
}

}  // namespace centroid::worker
