#include "common/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "common/optim/adaptive.h"
#include "common/optim/rule.h"
#include "common/tensor/multiversion.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

enum class Rule { kMean, kSgd, kMomentum, kNesterov, kAdagrad, kAdam, kAdamW, kYogi, kFtrl };

struct Entry {
  std::string_view name;
  Rule rule;
};

constexpr std::array<Entry, 9> kRules{{{"sgd", Rule::kSgd},
                                       {"momentum", Rule::kMomentum},
                                       {"nesterov", Rule::kNesterov},
                                       {"adagrad", Rule::kAdagrad},
                                       {"adam", Rule::kAdam},
                                       {"adamw", Rule::kAdamW},
                                       {"yogi", Rule::kYogi},
                                       {"ftrl", Rule::kFtrl},
                                       {"mean", Rule::kMean}}};

// The kernels read every operand of element i before they write it, so `out` may be `params` or
// `gradient`.

struct SgdKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* out, std::size_t n,
                           float learning_rate, float weight_decay) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float g = gradient[i] + weight_decay * params[i];
      out[i] = params[i] - learning_rate * g;
    }
  }
};

template <bool kNesterov>
struct MomentumKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* velocity, float* out,
                           std::size_t n, float learning_rate, float weight_decay, float momentum) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float p = params[i];
      const float g = gradient[i] + weight_decay * p;
      const float v = momentum * velocity[i] + g;
      velocity[i] = v;
      const float direction = kNesterov ? g + momentum * v : v;
      out[i] = p - learning_rate * direction;
    }
  }
};

class Sgd final : public RuleBase {
 public:
  Sgd(OptimizerConfig config, LearningRateSchedule schedule, Rule rule)
      : RuleBase(std::move(config), schedule), rule_(rule) {}

  std::vector<std::string> slot_names() const override {
    if (rule_ == Rule::kSgd || rule_ == Rule::kMean) return {};
    return {"momentum_buffer"};
  }

  double learning_rate(std::uint64_t step) const override {
    return rule_ == Rule::kMean ? 1 : RuleBase::learning_rate(step);
  }

  void step(std::uint64_t step, std::span<const float> params, std::span<const float> gradient,
            std::span<const std::span<float>> slots, std::span<float> out) const override {
    const std::size_t n = params.size();
    const auto rate = static_cast<float>(learning_rate(step));
    const auto decay = static_cast<float>(config().weight_decay);
    const auto momentum = static_cast<float>(config().momentum);
    const bool has_slot = rule_ == Rule::kMomentum || rule_ == Rule::kNesterov;
    CENTROID_CHECK(gradient.size() == n && out.size() == n);
    CENTROID_CHECK(slots.size() == (has_slot ? 1u : 0u));
    if (!has_slot)
      return run_multiversioned<SgdKernel>(params.data(), gradient.data(), out.data(), n, rate,
                                           decay);
    CENTROID_CHECK(slots[0].size() == n);
    if (rule_ == Rule::kNesterov)
      return run_multiversioned<MomentumKernel<true>>(
          params.data(), gradient.data(), slots[0].data(), out.data(), n, rate, decay, momentum);
    run_multiversioned<MomentumKernel<false>>(params.data(), gradient.data(), slots[0].data(),
                                              out.data(), n, rate, decay, momentum);
  }

 private:
  Rule rule_;
};

Error bad(const std::string& field, double value, const std::string& range) {
  return {ErrorCode::kInvalidArgument,
          "optimizer " + field + ": " + std::to_string(value) + " is not " + range};
}

Status check_decay_rate(const std::string& field, double value) {
  if (!(value >= 0.0 && value < 1.0)) return bad(field, value, "in [0, 1)");
  return {};
}

Status check_not_negative(const std::string& field, double value) {
  if (!(value >= 0.0 && std::isfinite(value))) return bad(field, value, "finite and >= 0");
  return {};
}

// All fields, whether the rule uses them or not: a wrong value is a mistake anyway.
Status check(const OptimizerConfig& config) {
  CENTROID_TRY(check_not_negative("learning_rate", config.learning_rate));
  CENTROID_TRY(check_not_negative("weight_decay", config.weight_decay));
  CENTROID_TRY(check_not_negative("epsilon", config.epsilon));
  CENTROID_TRY(check_not_negative("l1", config.l1));
  CENTROID_TRY(check_not_negative("clip_norm", config.clip_norm));
  CENTROID_TRY(check_decay_rate("momentum", config.momentum));
  CENTROID_TRY(check_decay_rate("beta1", config.beta1));
  CENTROID_TRY(check_decay_rate("beta2", config.beta2));
  if (!(config.ftrl_beta > 0 && std::isfinite(config.ftrl_beta)))
    return bad("ftrl_beta", config.ftrl_beta, "finite and > 0");
  return {};
}

/// What does not go with one rule.
Status check_rule(Rule rule, const OptimizerConfig& config, const LearningRateSchedule& schedule) {
  const auto refuse = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "optimizer " + config.name + " " + what);
  };
  const bool is_constant = schedule == LearningRateSchedule();
  if (rule == Rule::kMean && (!is_constant || config.weight_decay != 0))
    return refuse("takes the mean as it is: leave schedule constant and weight_decay 0");
  if (rule == Rule::kFtrl && !is_constant)
    return refuse("adapts the learning rate by itself: leave schedule constant");
  if (rule == Rule::kFtrl && !(config.learning_rate > 0))
    return refuse("needs a learning_rate above 0");
  return {};
}

}  // namespace

void Optimizer::step_at(std::uint64_t number, std::span<const std::uint32_t> index,
                        std::span<const float> gradient, std::span<float> params) const {
  CENTROID_CHECK(ignores_zeros() && index.size() == gradient.size());
  std::array<float, 512> block;
  while (!index.empty()) {
    const std::size_t n = std::min(index.size(), block.size());
    const std::span<float> part = std::span(block).first(n);
    for (std::size_t j = 0; j < n; ++j) part[j] = params[index[j]];
    step(number, part, gradient.first(n), {}, part);
    for (std::size_t j = 0; j < n; ++j) params[index[j]] = part[j];
    index = index.subspan(n);
    gradient = gradient.subspan(n);
  }
}

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& entry : kRules) list.emplace_back(entry.name);
    return list;
  }();
  return names;
}

Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config) {
  std::string known;
  for (const Entry& entry : kRules) {
    known += known.empty() ? "" : ", ";
    known += entry.name;
    if (entry.name != config.name) continue;
    CENTROID_TRY(check(config));
    CENTROID_ASSIGN(const auto schedule, LearningRateSchedule::parse(config.schedule));
    CENTROID_TRY(check_rule(entry.rule, config, schedule));
    switch (entry.rule) {
      case Rule::kAdagrad:
        return make_adaptive(AdaptiveRule::kAdagrad, config, schedule);
      case Rule::kAdam:
        return make_adaptive(AdaptiveRule::kAdam, config, schedule);
      case Rule::kAdamW:
        return make_adaptive(AdaptiveRule::kAdamW, config, schedule);
      case Rule::kYogi:
        return make_adaptive(AdaptiveRule::kYogi, config, schedule);
      case Rule::kFtrl:
        return make_adaptive(AdaptiveRule::kFtrl, config, schedule);
      default:
        return std::unique_ptr<Optimizer>(std::make_unique<Sgd>(config, schedule, entry.rule));
    }
  }
  return Error(ErrorCode::kInvalidArgument,
               "optimizer name: \"" + printable(config.name) + "\" is not one of " + known);
}

}  // namespace centroid
