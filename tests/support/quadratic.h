#pragma once

#include <cmath>

#include "tests/support/custom_group.h"

namespace centroid::test {

/// A model whose training can be computed by hand: the loss of a sample with target x is the sum
/// over all elements i of k_i (w_i - x)^2 / 2, so the gradient of a batch is k_i (w_i - mean of x).
/// Elements after `trained` are buffers, which move by a tenth towards k_i (mean of x).
class QuadraticGroup : public CustomGroup {
 public:
  explicit QuadraticGroup(std::size_t elements) : QuadraticGroup(elements, elements) {}
  QuadraticGroup(std::size_t elements, std::size_t trained)
      : CustomGroup(elements), trained_(trained) {}
  std::size_t trained() override { return trained_; }
  static double curvature(std::size_t i) { return 0.5 + 0.25 * static_cast<double>(i % 5); }

  Result<worker::GroupStep> step(const worker::Dataset& data,
                                 std::span<const std::uint64_t> samples,
                                 const std::function<void(TensorId)>& on_ready) override {
    double target = 0;
    for (const std::uint64_t sample : samples) target += data.x[sample];
    target /= static_cast<double>(std::max<std::size_t>(samples.size(), 1));
    const std::span<const float> at = params();
    for (std::size_t i = 0; i < at.size(); ++i) {
      const double change =
          i < trained_ ? curvature(i) * (at[i] - target) : 0.1 * (at[i] - curvature(i) * target);
      gradients()[i] = samples.empty() ? 0.0f : static_cast<float>(change);
    }
    for (std::uint32_t tensor = 0; tensor < tensors_; ++tensor) on_ready(TensorId(tensor));
    worker::GroupStep done;
    done.samples = samples.size();
    done.loss_sum = static_cast<double>(samples.size()) * target;
    return done;
  }

 private:
  static constexpr std::uint32_t tensors_ = 4;
  std::size_t trained_;
};

/// Tensors of 40, 9, 30 and 1 elements: in two fragments 40 = 40 and 30 + 9 + 1 = 40. The last two
/// may be buffers.
inline std::shared_ptr<const CustomModel> quadratic_model(bool has_buffers = false) {
  auto model = std::make_shared<CustomModel>();
  const std::vector<std::uint64_t> sizes{40, 9, 30, 1};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    model->manifest.push_back(
        {.name = (has_buffers && i > 1 ? "t.running_" : "t") + std::to_string(i),
         .dtype = DType::kF32,
         .shape = {sizes[i]}});
  model->make_group = [has_buffers] {
    return std::make_unique<QuadraticGroup>(80, has_buffers ? 49 : 80);
  };
  model->initialize = [](std::uint64_t, std::span<float> params) {
    for (std::size_t i = 0; i < params.size(); ++i)
      params[i] = static_cast<float>(std::sin(1.0 + static_cast<double>(i)));
  };
  return model;
}

/// One feature: the target.
inline worker::DataSplit quadratic_data(std::uint64_t samples) {
  std::vector<float> targets;
  for (std::uint64_t i = 0; i < samples; ++i)
    targets.push_back(2.0f + static_cast<float>(std::cos(static_cast<double>(3 * i))));
  return one_feature("targets", std::move(targets));
}

}  // namespace centroid::test
