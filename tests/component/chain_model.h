#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/optim/norm.h"
#include "worker/parallel/sharded_parameters.h"

namespace centroid::parallel::testing {

/// A small model: layers h' = tanh(W h + b), then an output scaled by one number, which is a layer
/// of one element. Loss: half the squared distance to a target, mean over samples.
struct Chain {
  std::uint32_t layers = 4, width = 7;

  std::size_t parameters() const { return 2 * layers + 1; }
  std::vector<ParameterShape> shapes() const {
    std::vector<ParameterShape> out;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::string name = "layer" + std::to_string(layer);
      out.push_back({name + ".weight", std::uint64_t{width} * width, layer});
      out.push_back({name + ".bias", width, layer});
    }
    out.push_back({"scale", 1, layers});
    return out;
  }
  static float number(std::uint64_t seed, std::uint64_t at) {
    return static_cast<float>(mix64(seed, at) % 2001) / 1000.0f - 1;
  }
  static Status initial(std::uint64_t seed, std::size_t index, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = 0.5f * number(seed, index * 10'000 + i) + (out.size() == 1 ? 1.0f : 0.0f);
    return {};
  }

  /// The loss of `samples` samples of this rank and step; adds their gradient. `model` has
  /// enter(layer), leave_forward(layer), leave_backward(layer), value(index), gradient(index).
  template <class Model>
  double run(Model& model, std::uint64_t step, std::uint64_t rank, std::uint32_t samples) const {
    std::vector<std::vector<float>> hidden(layers + 1,
                                           std::vector<float>(std::size_t{samples} * width));
    for (std::size_t i = 0; i < hidden[0].size(); ++i)
      hidden[0][i] = number(1000 + step * 64 + rank, i);
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      model.enter(layer, true);
      forward(model, layer, hidden[layer], hidden[layer + 1]);
      model.leave_forward(layer);
    }
    model.enter(layers, true);
    const float scale = model.value(2 * layers)[0];
    double loss = 0;
    std::vector<float> error(hidden[layers].size());
    float scale_gradient = 0;
    for (std::size_t i = 0; i < error.size(); ++i) {
      const float target = number(99, i % width) * hidden[0][i];
      const float distance = scale * hidden[layers][i] - target;
      loss += 0.5 * double{distance} * distance / samples;
      scale_gradient += distance * hidden[layers][i] / static_cast<float>(samples);
      error[i] = distance * scale / static_cast<float>(samples);
    }
    model.gradient(2 * layers)[0] += scale_gradient;
    model.leave_backward(layers);
    for (std::uint32_t layer = layers; layer-- > 0;) {
      model.enter(layer, false);
      error = backward(model, layer, hidden[layer], hidden[layer + 1], error);
      model.leave_backward(layer);
    }
    return loss;
  }

 private:
  template <class Model>
  void forward(Model& model, std::uint32_t layer, const std::vector<float>& in,
               std::vector<float>& out) const {
    const auto weight = model.value(2 * layer), bias = model.value(2 * layer + 1);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i % width, sample = i - row;
      float sum = bias[row];
      for (std::size_t k = 0; k < width; ++k) sum += weight[row * width + k] * in[sample + k];
      out[i] = std::tanh(sum);
    }
  }
  template <class Model>
  std::vector<float> backward(Model& model, std::uint32_t layer, const std::vector<float>& in,
                              const std::vector<float>& out,
                              const std::vector<float>& error) const {
    const auto weight = model.value(2 * layer);
    const auto weights = model.gradient(2 * layer), biases = model.gradient(2 * layer + 1);
    std::vector<float> before(in.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t row = i % width, sample = i - row;
      const float slope = error[i] * (1 - out[i] * out[i]);
      biases[row] += slope;
      for (std::size_t k = 0; k < width; ++k) {
        weights[row * width + k] += slope * in[sample + k];
        before[sample + k] += slope * weight[row * width + k];
      }
    }
    return before;
  }
};

/// The model in one process, for the samples of all ranks.
class WholeModel {
 public:
  WholeModel(const Chain& chain, std::uint64_t seed, const OptimizerConfig& config)
      : chain_(chain), optimizer_(std::move(make_optimizer(config)).value()) {
    for (const ParameterShape& shape : chain.shapes()) {
      const std::size_t index = begins_.size();
      begins_.push_back(values_.size());
      values_.resize(values_.size() + shape.elements);
      (void)Chain::initial(seed, index, std::span(values_).subspan(begins_.back()));
    }
    begins_.push_back(values_.size());
    state_.assign(optimizer_->slots(), std::vector<float>(values_.size()));
  }

  /// A step with `samples` samples of each rank; the mean loss.
  double step(std::uint64_t step, std::uint32_t ranks, std::uint32_t samples) {
    std::vector<double> sum(values_.size());
    double loss = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      gradients_.assign(values_.size(), 0);
      loss += chain_.run(*this, step, rank, samples) / ranks;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients_[i];
    }
    double squares = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      gradients_[i] = static_cast<float>(sum[i] / ranks);
      squares += double{gradients_[i]} * gradients_[i];
    }
    norm = std::sqrt(squares);
    const float factor = clip_factor(norm, optimizer_->config().clip_norm);
    for (float& value : gradients_) value *= factor;
    std::vector<std::span<float>> slots(state_.begin(), state_.end());
    optimizer_->step(step, values_, gradients_, slots, values_);
    return loss;
  }

  void enter(std::uint32_t, bool) {}
  void leave_forward(std::uint32_t) {}
  void leave_backward(std::uint32_t) {}
  std::span<const float> value(std::size_t index) const {
    return std::span(values_).subspan(begins_[index], begins_[index + 1] - begins_[index]);
  }
  std::span<float> gradient(std::size_t index) {
    return std::span(gradients_).subspan(begins_[index], begins_[index + 1] - begins_[index]);
  }
  const std::vector<float>& values() const { return values_; }
  double norm = 0;  ///< of the last step's gradient

 private:
  const Chain chain_;
  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::size_t> begins_;
  std::vector<float> values_, gradients_;
  std::vector<std::vector<float>> state_;
};

/// One rank's side of the sharded model: gathers units in use only, and the next one ahead.
class ShardedModel {
 public:
  ShardedModel(ShardedParameters& parameters, bool prefetches)
      : parameters_(parameters), prefetches_(prefetches) {}

  Status status;  ///< the first failure
  ShardedMemory most;

  void enter(std::uint32_t layer, bool is_forward) {
    const std::size_t unit = unit_of(layer);
    note(parameters_.gather(unit));
    if (!prefetches_ || !status.ok()) return;
    const std::size_t next = is_forward ? unit + 1 : unit - 1;  // before 0: no unit
    if (next < parameters_.layout().units().size() && !parameters_.is_gathered(next) &&
        !parameters_.is_prefetched(next))
      note(parameters_.prefetch(next));
  }
  void leave_forward(std::uint32_t layer) {
    if (unit_of(layer + 1) != unit_of(layer)) note(parameters_.release(unit_of(layer)));
  }
  void leave_backward(std::uint32_t layer) {
    const std::size_t unit = unit_of(layer);
    if (layer > 0 && unit_of(layer - 1) == unit) return;
    note(parameters_.reduce(unit));
    note(parameters_.release(unit));
  }
  std::span<const float> value(std::size_t index) {
    const auto values = parameters_.parameter(index);
    if (values.ok()) return *values;
    note(values.error());
    spare_.assign(parameters_.layout().parameters()[index].elements, 0);
    return spare_;
  }
  std::span<float> gradient(std::size_t index) {
    auto values = parameters_.gradient(index);
    note_memory();
    if (values.ok()) return *values;
    note(values.error());
    lost_[index % 2].assign(parameters_.layout().parameters()[index].elements, 0);
    return lost_[index % 2];
  }

 private:
  std::size_t unit_of(std::uint32_t layer) const {
    const auto parameters = parameters_.layout().parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].layer == layer) return parameters_.layout().unit_of(i);
    return parameters.size();
  }
  void note(Status result) {
    note_memory();
    if (status.ok() && !result.ok()) status = std::move(result);
  }
  void note_memory() {
    const ShardedMemory now = parameters_.memory();
    most.parameters = std::max(most.parameters, now.parameters);
    most.gradients = std::max(most.gradients, now.gradients);
    most.state = std::max(most.state, now.state);
  }

  ShardedParameters& parameters_;
  const bool prefetches_;
  std::vector<float> spare_, lost_[2];
};

}  // namespace centroid::parallel::testing
