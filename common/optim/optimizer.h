#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/optim/optimizer_config.h"
#include "common/optim/rules.h"
#include "common/optim/schedule.h"

namespace centroid {

/// All names, in the order of their documentation.
const std::vector<std::string>& optimizer_names();

enum class OptimizerRule : std::uint8_t {
  kMean,
  kSgd,
  kMomentum,
  kNesterov,
  kAdagrad,
  kAdam,
  kAdamW,
  kYogi,
  kFtrl
};

/// Update rule over slices: the same formulas (rules.h), and the same bits, on server, worker and
/// GPU.
///
/// slots    per-parameter state planes of the parameters' length (0 for mean and sgd, 1 for
///          momentum, nesterov and adagrad, 2 for the others); all zero before step 1
/// error    float32 arithmetic, against the same formulas in double over 1,000 steps:
///          ||p - p64|| <= 1e-6 ||p64|| (Euclidean; tests/unit/optimizer_test.cc)
/// source   PyTorch 2, torch.optim.SGD (dampening 0), Adam, AdamW, Adagrad (lr_decay 0):
///          "Algorithm" boxes of their documentation; yogi: Zaheer et al. 2018, with Adam's bias
///          corrections; ftrl: McMahan et al. 2013, algorithm 1, with a rate that may change
///          (rules.h); mean: w -= g
/// thread   `step` is pure apart from its arguments: any thread, one slice at a time;
///          `set_base_rate` and `set_rate_factor` between steps
class Optimizer {
 public:
  const OptimizerConfig& config() const { return config_; }
  std::vector<std::string> slot_names() const;  ///< e.g. {"exp_avg", "exp_avg_sq"}
  std::size_t slots() const { return slot_names().size(); }
  double learning_rate(std::uint64_t step) const;   ///< of that step, by schedule and factor
  double scheduled_rate(std::uint64_t step) const;  ///< the same without the factor
  /// The rule with the numbers of that step, for `run_step` and for GPUs. `step` counts from 1.
  rules::Step at(std::uint64_t step) const;
  /// out[i] = params[i] updated by gradient[i]; slots[k] are updated in place. `out` may be
  /// `params`, or may be `gradient`. `step` counts from 1. All spans have the same length; slot k
  /// is slots[k].
  void step(std::uint64_t step, std::span<const float> params, std::span<const float> gradient,
            std::span<const std::span<float>> slots, std::span<float> out) const;

  /// Take this one in place of the configured learning rate from now on, before the schedule.
  void set_base_rate(double rate) { config_.learning_rate = rate; }
  /// Multiply later learning rates by this (not that of mean).
  void set_rate_factor(double factor) { rate_factor_ = factor; }
  double rate_factor() const { return rate_factor_; }

  /// A gradient of 0 changes no (finite) parameter and no state.
  bool ignores_zeros() const { return slots() == 0 && config().weight_decay == 0; }
  /// With `ignores_zeros`: the step for params[index[j]] with gradient[j], in place; the bits of
  /// `step` with a gradient that is 0 everywhere else.
  void step_at(std::uint64_t step, std::span<const std::uint32_t> index,
               std::span<const float> gradient, std::span<float> params) const;

 private:
  friend Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config);
  Optimizer(OptimizerConfig config, LearningRateSchedule schedule, OptimizerRule rule)
      : config_(std::move(config)), schedule_(schedule), rule_(rule) {}
  template <bool kYogi>
  rules::Adam<kYogi> adam_at(std::uint64_t step) const;
  rules::Ftrl ftrl_at(std::uint64_t step) const;

  OptimizerConfig config_;
  LearningRateSchedule schedule_;
  OptimizerRule rule_;
  double rate_factor_ = 1;
};

/// fails invalid_argument: unknown name (lists the names), a value outside its range.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config);

/// Factor of a learning rate when the batches of this many workers form one.
///
/// source   Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1, if `ratio` is 1
constexpr double rate_factor_of(std::uint64_t workers, double ratio) {
  return workers > 1 ? 1 + static_cast<double>(workers - 1) * ratio : 1;
}

/// The step of a buffer (common/tensor/tensor.h), with every optimizer: its value less `change`,
/// without a learning rate, decay, clipping or slots. `out` may be `params` or `change`.
void step_buffer(std::span<const float> params, std::span<const float> change,
                 std::span<float> out);

/// Optimizer::step with a given rule.
void run_step(const rules::Step& rule, std::span<const float> params,
              std::span<const float> gradient, std::span<const std::span<float>> slots,
              std::span<float> out);

}  // namespace centroid
