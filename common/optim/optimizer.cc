#include "common/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "common/tensor/multiversion.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

struct Entry {
  std::string_view name;
  OptimizerRule rule;
};

constexpr std::array<Entry, 9> kRules{{{"sgd", OptimizerRule::kSgd},
                                       {"momentum", OptimizerRule::kMomentum},
                                       {"nesterov", OptimizerRule::kNesterov},
                                       {"adagrad", OptimizerRule::kAdagrad},
                                       {"adam", OptimizerRule::kAdam},
                                       {"adamw", OptimizerRule::kAdamW},
                                       {"yogi", OptimizerRule::kYogi},
                                       {"ftrl", OptimizerRule::kFtrl},
                                       {"mean", OptimizerRule::kMean}}};

/// FTRL treats a rate below 1e-15 as 0, so that no product with its inverse overflows.
constexpr double kMostInverseRate = 1e15;

// Reads every operand of element i before it writes it, so `out` may be `params` or `gradient`.
template <class Rule>
struct StepKernel {
  CENTROID_KERNEL void run(const Rule* rule, const float* params, const float* gradient,
                           float* slot0, float* slot1, float* out, std::size_t n) {
    const Rule r = *rule;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      float a = 0, b = 0;
      if constexpr (Rule::kSlots > 0) a = slot0[i];
      if constexpr (Rule::kSlots > 1) b = slot1[i];
      const float next = r.next(params[i], gradient[i], a, b);
      if constexpr (Rule::kSlots > 0) slot0[i] = a;
      if constexpr (Rule::kSlots > 1) slot1[i] = b;
      out[i] = next;
    }
  }
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

// Checks all fields, also those that the rule does not use: a wrong value is a mistake anyway.
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

/// Check the settings against the rule.
Status check_rule(OptimizerRule rule, const OptimizerConfig& config,
                  const LearningRateSchedule& schedule) {
  const auto refuse = [&](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, "optimizer " + config.name + " " + what);
  };
  const bool is_constant = schedule == LearningRateSchedule();
  if (rule == OptimizerRule::kMean && (!is_constant || config.weight_decay != 0))
    return refuse("takes the mean as it is: leave schedule constant and weight_decay 0");
  if (rule == OptimizerRule::kFtrl && !(config.learning_rate > 0))
    return refuse("needs a learning_rate above 0");
  return {};
}

}  // namespace

std::vector<std::string> Optimizer::slot_names() const {
  switch (rule_) {
    case OptimizerRule::kMean:
    case OptimizerRule::kSgd:
      return {};
    case OptimizerRule::kMomentum:
    case OptimizerRule::kNesterov:
      return {"momentum_buffer"};
    case OptimizerRule::kAdagrad:
      return {"sum"};
    case OptimizerRule::kFtrl:
      return {"linear", "sum"};
    default:
      return {"exp_avg", "exp_avg_sq"};
  }
}

double Optimizer::scheduled_rate(std::uint64_t step) const {
  if (rule_ == OptimizerRule::kMean) return 1;
  return config_.learning_rate * schedule_.factor(step);
}

double Optimizer::learning_rate(std::uint64_t step) const {
  if (rule_ == OptimizerRule::kMean) return 1;
  return scheduled_rate(step) * rate_factor_;
}

// Computes the factors of a step in double and rounds once.
template <bool kYogi>
rules::Adam<kYogi> Optimizer::adam_at(std::uint64_t step) const {
  CENTROID_CHECK(step >= 1);
  const auto t = static_cast<double>(step);
  const double rate = learning_rate(step);
  const bool is_decoupled = rule_ == OptimizerRule::kAdamW;
  rules::Adam<kYogi> s{};
  s.l2_decay = is_decoupled ? 0.0f : static_cast<float>(config_.weight_decay);
  s.decay = is_decoupled ? static_cast<float>(rate * config_.weight_decay) : 0.0f;
  s.one_minus_beta1 = static_cast<float>(1.0 - config_.beta1);
  s.one_minus_beta2 = static_cast<float>(1.0 - config_.beta2);
  s.epsilon = static_cast<float>(config_.epsilon);
  s.step_size = static_cast<float>(rate / (1.0 - std::pow(config_.beta1, t)));
  s.root_bias_correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(config_.beta2, t)));
  return s;
}

rules::Ftrl Optimizer::ftrl_at(std::uint64_t step) const {
  const double inverse = 1.0 / learning_rate(step);
  const bool moves = inverse <= kMostInverseRate;
  return {static_cast<float>(moves ? inverse : 1.0), moves ? 1.0f : 0.0f,
          static_cast<float>(config_.ftrl_beta), static_cast<float>(config_.l1),
          static_cast<float>(config_.weight_decay)};
}

rules::Step Optimizer::at(std::uint64_t step) const {
  const auto rate = static_cast<float>(learning_rate(step));
  const auto decay = static_cast<float>(config_.weight_decay);
  const auto momentum = static_cast<float>(config_.momentum);
  switch (rule_) {
    case OptimizerRule::kMean:
    case OptimizerRule::kSgd:
      return rules::Sgd{rate, decay};
    case OptimizerRule::kMomentum:
      return rules::Momentum<false>{rate, decay, momentum};
    case OptimizerRule::kNesterov:
      return rules::Momentum<true>{rate, decay, momentum};
    case OptimizerRule::kAdagrad:
      return rules::Adagrad{rate, decay, static_cast<float>(config_.epsilon)};
    case OptimizerRule::kYogi:
      return adam_at<true>(step);
    case OptimizerRule::kFtrl:
      return ftrl_at(step);
    default:
      return adam_at<false>(step);
  }
}

void Optimizer::step(std::uint64_t step, std::span<const float> params,
                     std::span<const float> gradient, std::span<const std::span<float>> slots,
                     std::span<float> out) const {
  run_step(at(step), params, gradient, slots, out);
}

void run_step(const rules::Step& rule, std::span<const float> params,
              std::span<const float> gradient, std::span<const std::span<float>> slots,
              std::span<float> out) {
  const std::size_t n = params.size();
  CENTROID_CHECK(gradient.size() == n && out.size() == n);
  for (const auto& slot : slots) CENTROID_CHECK(slot.size() == n);
  const auto slot = [&](std::size_t k) { return k < slots.size() ? slots[k].data() : nullptr; };
  const auto run = [&]<class Rule>(const Rule& of) {
    CENTROID_CHECK(slots.size() == Rule::kSlots);
    run_multiversioned<StepKernel<Rule>>(&of, params.data(), gradient.data(), slot(0), slot(1),
                                         out.data(), n);
  };
  std::visit(run, rule);
}

void step_buffer(std::span<const float> params, std::span<const float> change,
                 std::span<float> out) {
  run_step(rules::kBufferStep, params, change, {}, out);
}

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
    return std::unique_ptr<Optimizer>(new Optimizer(config, schedule, entry.rule));
  }
  return Error(ErrorCode::kInvalidArgument,
               "optimizer name: \"" + printable(config.name) + "\" is not one of " + known);
}

}  // namespace centroid
