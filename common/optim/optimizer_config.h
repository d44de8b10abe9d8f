#pragma once

#include <string>

namespace centroid {

/// Settings of an optimizer; names and defaults as in PyTorch's torch.optim.
struct OptimizerConfig {
  std::string name = "sgd";  ///< one of `optimizer_names`
  double learning_rate = 0.01;
  double momentum = 0.9;      ///< momentum, nesterov
  double beta1 = 0.9;         ///< adam, adamw, yogi
  double beta2 = 0.999;       ///< adam, adamw, yogi
  double epsilon = 1e-8;      ///< adam, adamw, yogi, adagrad
  double weight_decay = 0.0;  ///< L2 term added to the gradient; decoupled for adamw; ftrl: its L2
  double l1 = 0.0;            ///< ftrl
  double ftrl_beta = 1.0;     ///< ftrl: added to the root of the squares' sum
  std::string schedule = "constant";  ///< of the learning rate: schedule.h
  /// Limit of the Euclidean norm of the whole gradient; 0: none. The caller scales the gradient
  /// (norm.h), because `step` gets only slices of it.
  double clip_norm = 0.0;
  bool operator==(const OptimizerConfig&) const = default;
};

}  // namespace centroid
