#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/random.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"
#include "worker/model/model.h"

namespace centroid::test {

/// Samples that a model can learn from, the same in every process.
class Samples {
 public:
  Samples(const worker::Model& model, std::uint64_t samples, std::uint64_t seed)
      : features_(model.features()), targets_(model.targets()), ids_(samples) {
    std::iota(ids_.begin(), ids_.end(), seed * samples);
    for (const std::uint64_t id : ids_) {
      CounterRng rng(17, id);
      if (model.vocabulary() > 0)
        add_sequence(model, rng);
      else
        add_row(model, rng);
    }
  }

  std::uint64_t count() const { return ids_.size(); }
  worker::Batch part(std::uint64_t begin, std::uint64_t count) const {
    worker::Batch batch;
    batch.samples = count;
    if (tokens_.empty())
      batch.x = std::span(x_).subspan(begin * features_, count * features_);
    else
      batch.tokens = std::span(tokens_).subspan(begin * features_, count * features_);
    batch.y = std::span(y_).subspan(begin * targets_, count * targets_);
    batch.ids = std::span(ids_).subspan(begin, count);
    batch.noise = 3;
    return batch;
  }

 private:
  /// Each token follows from the one before.
  void add_sequence(const worker::Model& model, CounterRng& rng) {
    std::uint32_t token = static_cast<std::uint32_t>(rng.below(model.vocabulary()));
    for (std::uint64_t i = 0; i < features_; ++i) {
      tokens_.push_back(token);
      token = static_cast<std::uint32_t>((std::uint64_t{token} * 5 + 1) % model.vocabulary());
      if (targets_ > 1) y_.push_back(token);
    }
    if (targets_ == 1) y_.push_back(token % model.classes());
  }
  /// The class is that of the largest of the first features.
  void add_row(const worker::Model& model, CounterRng& rng) {
    const std::size_t begin = x_.size();
    for (std::uint64_t i = 0; i < features_; ++i) x_.push_back(static_cast<float>(rng.normal()));
    std::uint32_t best = 0;
    for (std::uint32_t i = 1; i < std::min<std::uint64_t>(features_, model.classes()); ++i)
      if (x_[begin + i] > x_[begin + best]) best = i;
    y_.push_back(best);
  }

  std::uint64_t features_, targets_;
  std::vector<float> x_;
  std::vector<std::uint32_t> tokens_, y_;
  std::vector<std::uint64_t> ids_;
};

/// A model in one process: what divided training is compared with.
class WholeTraining {
 public:
  WholeTraining(const worker::Model& model, std::uint64_t seed, const OptimizerConfig& config)
      : model_(model.clone()), optimizer_(std::move(make_optimizer(config)).value()) {
    std::size_t elements = 0;
    for (const TensorInfo& tensor : model_->manifest()) elements += tensor.elements();
    params_.resize(elements);
    gradient_.resize(elements);
    state_.assign(optimizer_->slots(), std::vector<float>(elements));
    model_->initialize(seed, params_);
  }

  worker::StepResult step(const worker::Batch& batch) {
    const worker::StepResult result = model_->step(batch, params_, gradient_, [](TensorId) {});
    if (const double bound = optimizer_->config().clip_norm; bound > 0) {
      const float factor = clip_factor(std::sqrt(sum_of_squares(gradient_)), bound);
      for (float& value : gradient_) value *= factor;
    }
    std::vector<std::span<float>> slots(state_.begin(), state_.end());
    optimizer_->step(++steps_, params_, gradient_, slots, params_);
    return result;
  }
  worker::StepResult evaluate(const worker::Batch& batch) {
    return model_->evaluate(batch, params_);
  }
  std::span<const float> params() const { return params_; }
  std::span<const float> gradient() const { return gradient_; }  ///< of the last step

 private:
  std::unique_ptr<worker::Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<float> params_, gradient_;
  std::vector<std::vector<float>> state_;
  std::uint64_t steps_ = 0;
};

}  // namespace centroid::test
