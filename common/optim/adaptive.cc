#include "common/optim/adaptive.h"

#include <cmath>
#include <limits>

#include "common/optim/rule.h"
#include "common/tensor/multiversion.h"

namespace centroid {
namespace {

// The kernels read every operand of element i before they write it, so `out` may be `params` or
// `gradient`.

struct AdamScalars {
  float weight_decay;  // L2, into the gradient
  float decay;         // decoupled: learning_rate * weight_decay
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon;
  float step_size;              // learning_rate / (1 - beta1^t)
  float root_bias_correction2;  // sqrt(1 - beta2^t)
};

template <bool kYogi>
struct AdamKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* mean, float* square,
                           float* out, std::size_t n, const AdamScalars* scalars) {
    const AdamScalars s = *scalars;
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float g = gradient[i] + s.weight_decay * params[i];
      const float m = mean[i] + s.one_minus_beta1 * (g - mean[i]);
      float v;
      if constexpr (kYogi) {
        const float change = s.one_minus_beta2 * g * g;
        v = square[i] > g * g ? square[i] - change : square[i] + change;
      } else {
        // Not beta2 * square: rounding 0.999 to a float shifts the average by 1e-5.
        v = square[i] + s.one_minus_beta2 * (g * g - square[i]);
      }
      mean[i] = m;
      square[i] = v;
      const float denominator = std::sqrt(v) / s.root_bias_correction2 + s.epsilon;
      // Not params * (1 - decay): rounding that factor shifts every step the same way.
      out[i] = params[i] - (s.decay * params[i] + s.step_size * (m / denominator));
    }
  }
};

struct AdagradKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* sum, float* out,
                           std::size_t n, float learning_rate, float weight_decay, float epsilon) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float p = params[i];
      const float g = gradient[i] + weight_decay * p;
      const float s = sum[i] + g * g;
      sum[i] = s;
      out[i] = p - learning_rate * (g / (std::sqrt(s) + epsilon));
    }
  }
};

struct FtrlScalars {
  float inverse_rate;  // 1 / learning_rate
  float beta;
  float l1;
  float l2;
};

template <bool kFirst>
struct FtrlKernel {
  CENTROID_KERNEL void run(const float* params, const float* gradient, float* linear, float* square,
                           float* out, std::size_t n, const FtrlScalars* scalars) {
    const FtrlScalars s = *scalars;
    constexpr float kTiny = std::numeric_limits<float>::min();
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) {
      const float p = params[i], g = gradient[i];
      float z = linear[i];
      // Begin where the rule gives the parameter as it is, not at 0.
      if constexpr (kFirst)
        z = -p * (s.beta * s.inverse_rate + s.l2) - (p == 0 ? 0.0f : std::copysign(s.l1, p));
      const float before = std::sqrt(square[i]);
      const float squares = square[i] + g * g;
      const float root = std::sqrt(squares);
      // (root - before) / learning_rate without the cancellation.
      const float roots = root + before;
      const float sigma = g * g / (roots > kTiny ? roots : kTiny) * s.inverse_rate;
      z += g - sigma * p;
      linear[i] = z;
      square[i] = squares;
      const float shrunk = z - std::copysign(s.l1, z);
      const float next = -shrunk / ((s.beta + root) * s.inverse_rate + s.l2);
      out[i] = std::fabs(z) <= s.l1 ? 0.0f : next;
    }
  }
};

class Adaptive final : public RuleBase {
 public:
  Adaptive(AdaptiveRule rule, OptimizerConfig config, LearningRateSchedule schedule)
      : RuleBase(std::move(config), schedule), rule_(rule) {}

  std::vector<std::string> slot_names() const override {
    switch (rule_) {
      case AdaptiveRule::kAdagrad:
        return {"sum"};
      case AdaptiveRule::kFtrl:
        return {"linear", "sum"};
      default:
        return {"exp_avg", "exp_avg_sq"};
    }
  }

  void step(std::uint64_t step, std::span<const float> params, std::span<const float> gradient,
            std::span<const std::span<float>> slots, std::span<float> out) const override {
    const std::size_t n = params.size();
    CENTROID_CHECK(step >= 1 && slots.size() == (rule_ == AdaptiveRule::kAdagrad ? 1u : 2u));
    CENTROID_CHECK(gradient.size() == n && out.size() == n);
    for (const auto& slot : slots) CENTROID_CHECK(slot.size() == n);
    if (rule_ == AdaptiveRule::kAdagrad)
      return run_multiversioned<AdagradKernel>(
          params.data(), gradient.data(), slots[0].data(), out.data(), n,
          static_cast<float>(learning_rate(step)), static_cast<float>(config().weight_decay),
          static_cast<float>(config().epsilon));
    if (rule_ == AdaptiveRule::kFtrl) {
      const FtrlScalars scalars{.inverse_rate = static_cast<float>(1.0 / config().learning_rate),
                                .beta = static_cast<float>(config().ftrl_beta),
                                .l1 = static_cast<float>(config().l1),
                                .l2 = static_cast<float>(config().weight_decay)};
      return step == 1 ? run<FtrlKernel<true>>(params, gradient, slots, out, &scalars)
                       : run<FtrlKernel<false>>(params, gradient, slots, out, &scalars);
    }
    const AdamScalars scalars = scalars_at(step);
    return rule_ == AdaptiveRule::kYogi
               ? run<AdamKernel<true>>(params, gradient, slots, out, &scalars)
               : run<AdamKernel<false>>(params, gradient, slots, out, &scalars);
  }

 private:
  template <class Kernel, class Scalars>
  static void run(std::span<const float> params, std::span<const float> gradient,
                  std::span<const std::span<float>> slots, std::span<float> out,
                  const Scalars* scalars) {
    run_multiversioned<Kernel>(params.data(), gradient.data(), slots[0].data(), slots[1].data(),
                               out.data(), params.size(), scalars);
  }

  // Per-step factors in double, rounded once.
  AdamScalars scalars_at(std::uint64_t step) const {
    const OptimizerConfig& c = config();
    const auto t = static_cast<double>(step);
    const double rate = learning_rate(step);
    const double correction1 = 1.0 - std::pow(c.beta1, t);
    const double correction2 = 1.0 - std::pow(c.beta2, t);
    const bool is_decoupled = rule_ == AdaptiveRule::kAdamW;
    AdamScalars s{};
    s.weight_decay = is_decoupled ? 0.0f : static_cast<float>(c.weight_decay);
    s.decay = is_decoupled ? static_cast<float>(rate * c.weight_decay) : 0.0f;
    s.one_minus_beta1 = static_cast<float>(1.0 - c.beta1);
    s.one_minus_beta2 = static_cast<float>(1.0 - c.beta2);
    s.epsilon = static_cast<float>(c.epsilon);
    s.step_size = static_cast<float>(rate / correction1);
    s.root_bias_correction2 = static_cast<float>(std::sqrt(correction2));
    return s;
  }

  AdaptiveRule rule_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adaptive(AdaptiveRule rule, OptimizerConfig config,
                                         LearningRateSchedule schedule) {
  return std::make_unique<Adaptive>(rule, std::move(config), schedule);
}

}  // namespace centroid
