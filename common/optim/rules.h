#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>

#if defined(__CUDACC__)
#define CENTROID_RULE __host__ __device__ __forceinline__
#else
#define CENTROID_RULE [[gnu::always_inline]] inline
#endif

/// What optimizers do to one parameter, for the loops on the CPU and for CUDA kernels. Every
/// operation rounds by itself (contraction is off on both), so all machines give the same bits.
///
/// next    the parameter after the step; `a` and `b` are its numbers of the slots, and change
/// source  see optimizer.h
namespace centroid::rules {

/// mean: rate 1, decay 0.
struct Sgd {
  static constexpr std::size_t kSlots = 0;
  float rate, decay;
  CENTROID_RULE float next(float p, float gradient, float&, float&) const {
    const float g = gradient + decay * p;
    return p - rate * g;
  }
};

template <bool kNesterov>
struct Momentum {
  static constexpr std::size_t kSlots = 1;
  float rate, decay, momentum;
  CENTROID_RULE float next(float p, float gradient, float& velocity, float&) const {
    const float g = gradient + decay * p;
    const float v = momentum * velocity + g;
    velocity = v;
    const float direction = kNesterov ? g + momentum * v : v;
    return p - rate * direction;
  }
};

struct Adagrad {
  static constexpr std::size_t kSlots = 1;
  float rate, decay, epsilon;
  CENTROID_RULE float next(float p, float gradient, float& sum, float&) const {
    const float g = gradient + decay * p;
    const float s = sum + g * g;
    sum = s;
    return p - rate * (g / (std::sqrt(s) + epsilon));
  }
};

template <bool kYogi>
struct Adam {
  static constexpr std::size_t kSlots = 2;
  float l2_decay;  ///< into the gradient
  float decay;     ///< decoupled: rate * weight_decay
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon;
  float step_size;              ///< rate / (1 - beta1^t)
  float root_bias_correction2;  ///< sqrt(1 - beta2^t)
  CENTROID_RULE float next(float p, float gradient, float& mean, float& square) const {
    const float g = gradient + l2_decay * p;
    const float m = mean + one_minus_beta1 * (g - mean);
    float v;
    if constexpr (kYogi) {
      const float change = one_minus_beta2 * g * g;
      v = square > g * g ? square - change : square + change;
    } else {
      // Not beta2 * square: rounding 0.999 to a float shifts the average by 1e-5.
      v = square + one_minus_beta2 * (g * g - square);
    }
    mean = m;
    square = v;
    const float denominator = std::sqrt(v) / root_bias_correction2 + epsilon;
    // Not p * (1 - decay): rounding that factor shifts every step the same way.
    return p - (decay * p + step_size * (m / denominator));
  }
};

template <bool kFirst>
struct Ftrl {
  static constexpr std::size_t kSlots = 2;
  float inverse_rate;  ///< 1 / rate
  float beta, l1, l2;
  CENTROID_RULE float next(float p, float g, float& linear, float& square) const {
    constexpr float kTiny = std::numeric_limits<float>::min();
    float z = linear;
    // Begin where the rule gives the parameter as it is, not at 0.
    if constexpr (kFirst)
      z = -p * (beta * inverse_rate + l2) - (p == 0 ? 0.0f : std::copysign(l1, p));
    const float before = std::sqrt(square);
    const float squares = square + g * g;
    const float root = std::sqrt(squares);
    // (root - before) / rate without the cancellation.
    const float roots = root + before;
    const float sigma = g * g / (roots > kTiny ? roots : kTiny) * inverse_rate;
    z += g - sigma * p;
    linear = z;
    square = squares;
    const float shrunk = z - std::copysign(l1, z);
    const float updated = -shrunk / ((beta + root) * inverse_rate + l2);
    return std::fabs(z) <= l1 ? 0.0f : updated;
  }
};

/// One step of an optimizer: the rule with that step's numbers.
using Step = std::variant<Sgd, Momentum<false>, Momentum<true>, Adagrad, Adam<false>, Adam<true>,
                          Ftrl<false>, Ftrl<true>>;

/// How norm.h's sum_of_squares is cut.
constexpr std::uint64_t kSquaresBlock = 4096, kSquaresLanes = 128, kSquaresTotals = 256;

/// norm.h: clip_factor.
CENTROID_RULE float clip_factor_of(double norm, double bound) {
  const bool is_finite = norm <= std::numeric_limits<double>::max();
  return bound > 0 && is_finite && norm > bound ? static_cast<float>(bound / norm) : 1.0f;
}

}  // namespace centroid::rules
