#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid {

/// Settings of an optimizer; names and defaults as in PyTorch's torch.optim.
struct OptimizerConfig {
  std::string name = "sgd";  ///< sgd, momentum, nesterov, adam, adamw
  double learning_rate = 0.01;
  double momentum = 0.9;      ///< momentum, nesterov
  double beta1 = 0.9;         ///< adam, adamw
  double beta2 = 0.999;       ///< adam, adamw
  double epsilon = 1e-8;      ///< adam, adamw
  double weight_decay = 0.0;  ///< L2 term added to the gradient; decoupled for adamw
};

/// Update rule over slices: the same code, and the same bits, on server and worker.
///
/// slots    per-parameter state planes of the parameters' length (0 for sgd, 1 for momentum and
/// nesterov, 2 for adam and
///          adamw); all zero before step 1
/// error    float32 arithmetic, against the same formulas in double over 1,000 steps: |p - p64| <=
/// 1e-5 * max|p64|
///          (checked in tests/unit/optimizer_test.cc)
/// source   PyTorch 2, torch.optim.SGD (dampening 0), Adam, AdamW: "Algorithm" boxes of their
/// documentation thread   `step` is pure apart from its arguments: any thread, one slice at a time
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const OptimizerConfig& config() const = 0;
  virtual std::vector<std::string> slot_names() const = 0;  ///< e.g. {"exp_avg", "exp_avg_sq"}
  std::size_t slots() const { return slot_names().size(); }
  /// out[i] = params[i] updated by gradient[i]; slots[k] are updated in place. `out` may be
  /// `params`, or may be `gradient`. `step` counts from 1. All spans have the same length; slot k
  /// is slots[k].
  virtual void step(std::uint64_t step, std::span<const float> params,
                    std::span<const float> gradient, std::span<const std::span<float>> slots,
                    std::span<float> out) const = 0;
};

/// fails invalid_argument: unknown name (lists the known ones), a value out of its range.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config);

}  // namespace centroid
