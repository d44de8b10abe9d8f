#pragma once

#include <cmath>
#include <cstdint>

#include "common/optim/optimizer.h"
#include "common/optim/schedule.h"

namespace centroid {

/// The rules in double, one number at a time, written from the published algorithms.
struct OptimizerOracle {
  OptimizerConfig c;
  double p = 0, buffer = 0, m = 0, v = 0, inverse = -1;

  void step(int t, double g) {
    if (c.name == "adam" || c.name == "adamw" || c.name == "yogi") return adam(t, g);
    if (c.name == "ftrl") return ftrl(g, rate(t));
    if (c.name == "mean") {
      p -= g;
      return;
    }
    if (c.name == "adagrad") {
      g += c.weight_decay * p;
      v += g * g;
      p -= rate(t) * g / (std::sqrt(v) + c.epsilon);
      return;
    }
    g += c.weight_decay * p;
    if (c.name != "sgd") {
      buffer = t == 1 ? g : c.momentum * buffer + g;
      g = c.name == "nesterov" ? g + c.momentum * buffer : buffer;
    }
    p -= rate(t) * g;
  }
  void adam(int t, double g) {
    if (c.name == "adamw")
      p -= rate(t) * c.weight_decay * p;
    else
      g += c.weight_decay * p;
    m = c.beta1 * m + (1 - c.beta1) * g;
    if (c.name == "yogi")
      v -= (1 - c.beta2) * (v > g * g ? 1.0 : -1.0) * g * g;
    else
      v = c.beta2 * v + (1 - c.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(c.beta1, t));
    const double v_hat = v / (1 - std::pow(c.beta2, t));
    p -= rate(t) * m_hat / (std::sqrt(v_hat) + c.epsilon);
  }
  double rate(int t) const {
    return c.learning_rate *
           LearningRateSchedule::parse(c.schedule)->factor(static_cast<std::uint64_t>(t));
  }
  // m: the sum z, v: the sum n of squares of the paper, inverse: its 1 / eta, the sum of all sigma.
  // So sigma follows from the rates of this step and of the one before. At a rate of 0 a parameter
  // does not change.
  void ftrl(double g, double alpha) {
    const double before = std::sqrt(v);
    v += g * g;
    if (alpha == 0) return;
    if (inverse < 0) {
      inverse = (c.ftrl_beta + before) / alpha;
      if (p != 0) m = -(p * (inverse + c.weight_decay) + (p > 0 ? c.l1 : -c.l1));
    }
    const double now = (c.ftrl_beta + std::sqrt(v)) / alpha;
    const double sigma = now - inverse;
    inverse = now;
    m += g - sigma * p;
    p = std::abs(m) <= c.l1 ? 0 : -(m - (m > 0 ? c.l1 : -c.l1)) / (now + c.weight_decay);
  }
};

}  // namespace centroid
