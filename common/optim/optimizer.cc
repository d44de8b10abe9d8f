#include "common/optim/optimizer.h"

#include <array>
#include <cmath>
#include <string_view>

#include "common/tensor/multiversion.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

// One name, one row: how many slots, and which settings the name uses.
enum class Rule { kSgd, kMomentum, kNesterov, kAdam, kAdamW };

struct Entry {
  std::string_view name;
  Rule rule;
};

constexpr std::array<Entry, 5> kRules{{{"sgd", Rule::kSgd},
                                       {"momentum", Rule::kMomentum},
                                       {"nesterov", Rule::kNesterov},
                                       {"adam", Rule::kAdam},
                                       {"adamw", Rule::kAdamW}}};

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

struct AdamScalars {
  float weight_decay;  // L2, into the gradient
  float decay;         // decoupled: learning_rate * weight_decay
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float epsilon;
  float step_size;              // learning_rate / (1 - beta1^t)
  float root_bias_correction2;  // sqrt(1 - beta2^t)
};

struct AdamKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* mean, float* square,
                           float* out, std::size_t n, const AdamScalars* scalars) {
    const AdamScalars s = *scalars;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float g = gradient[i] + s.weight_decay * params[i];
      // Not params * (1 - decay): rounding that factor shifts every step the same way.
      const float p = params[i] - s.decay * params[i];
      const float m = mean[i] + s.one_minus_beta1 * (g - mean[i]);
      const float v = s.beta2 * square[i] + s.one_minus_beta2 * g * g;
      mean[i] = m;
      square[i] = v;
      const float denominator = std::sqrt(v) / s.root_bias_correction2 + s.epsilon;
      out[i] = p - s.step_size * (m / denominator);
    }
  }
};

class Sgd final : public Optimizer {
 public:
  Sgd(OptimizerConfig config, Rule rule) : config_(std::move(config)), rule_(rule) {}

  const OptimizerConfig& config() const override { return config_; }

  std::vector<std::string> slot_names() const override {
    if (rule_ == Rule::kSgd) return {};
    return {"momentum_buffer"};
  }

  void step(std::uint64_t, std::span<const float> params, std::span<const float> gradient,
            std::span<const std::span<float>> slots, std::span<float> out) const override {
    const std::size_t n = params.size();
    const auto rate = static_cast<float>(config_.learning_rate);
    const auto decay = static_cast<float>(config_.weight_decay);
    const auto momentum = static_cast<float>(config_.momentum);
    CENTROID_CHECK(gradient.size() == n && out.size() == n);
    CENTROID_CHECK(slots.size() == (rule_ == Rule::kSgd ? 0u : 1u));
    if (rule_ == Rule::kSgd)
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
  OptimizerConfig config_;
  Rule rule_;
};

class Adam final : public Optimizer {
 public:
  Adam(OptimizerConfig config, Rule rule) : config_(std::move(config)), rule_(rule) {}

  const OptimizerConfig& config() const override { return config_; }
  std::vector<std::string> slot_names() const override { return {"exp_avg", "exp_avg_sq"}; }

  void step(std::uint64_t step, std::span<const float> params, std::span<const float> gradient,
            std::span<const std::span<float>> slots, std::span<float> out) const override {
    const std::size_t n = params.size();
    CENTROID_CHECK(step >= 1 && slots.size() == 2);
    CENTROID_CHECK(gradient.size() == n && out.size() == n);
    CENTROID_CHECK(slots[0].size() == n && slots[1].size() == n);
    const AdamScalars scalars = scalars_at(step);
    run_multiversioned<AdamKernel>(params.data(), gradient.data(), slots[0].data(), slots[1].data(),
                                   out.data(), n, &scalars);
  }

 private:
  // Per-step factors in double, rounded once.
  AdamScalars scalars_at(std::uint64_t step) const {
    const auto t = static_cast<double>(step);
    const double correction1 = 1.0 - std::pow(config_.beta1, t);
    const double correction2 = 1.0 - std::pow(config_.beta2, t);
    const bool is_decoupled = rule_ == Rule::kAdamW;
    AdamScalars s{};
    s.weight_decay = is_decoupled ? 0.0f : static_cast<float>(config_.weight_decay);
    s.decay =
        is_decoupled ? static_cast<float>(config_.learning_rate * config_.weight_decay) : 0.0f;
    s.one_minus_beta1 = static_cast<float>(1.0 - config_.beta1);
    s.beta2 = static_cast<float>(config_.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - config_.beta2);
    s.epsilon = static_cast<float>(config_.epsilon);
    s.step_size = static_cast<float>(config_.learning_rate / correction1);
    s.root_bias_correction2 = static_cast<float>(std::sqrt(correction2));
    return s;
  }

  OptimizerConfig config_;
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
  CENTROID_TRY(check_decay_rate("momentum", config.momentum));
  CENTROID_TRY(check_decay_rate("beta1", config.beta1));
  return check_decay_rate("beta2", config.beta2);
}

}  // namespace

Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerConfig& config) {
  std::string known;
  for (const Entry& entry : kRules) {
    known += known.empty() ? "" : ", ";
    known += entry.name;
    if (entry.name != config.name) continue;
    CENTROID_TRY(check(config));
    if (entry.rule == Rule::kAdam || entry.rule == Rule::kAdamW)
      return std::unique_ptr<Optimizer>(std::make_unique<Adam>(config, entry.rule));
    return std::unique_ptr<Optimizer>(std::make_unique<Sgd>(config, entry.rule));
  }
  return Error(ErrorCode::kInvalidArgument,
               "optimizer name: \"" + printable(config.name) + "\" is not one of " + known);
}

}  // namespace centroid
