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

/// Update rules for one parameter, for loops on the CPU and for CUDA kernels. Every operation
/// rounds separately (contraction is off on both), so all machines compute the same bits.
///
/// next    returns the parameter after the step; the last two arguments are its slot values, which
///         change
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

/// For buffers (common/tensor/tensor.h), with every optimizer: their gradient is old - new.
constexpr Sgd kBufferStep{1.0f, 0.0f};

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

/// The sum z of FTRL-proximal follows from the parameter if that is not 0, so a changing rate does
/// not need the rate of the step before: with S = (beta + sqrt(square)) / rate + l2 of the present
/// step, z = -(S p + sign(p) l1) + g. This is z + g - sigma p of the paper with sigma = S - S of
/// the step before, without the cancellation. `linear` counts if p is 0.
struct Ftrl {
  static constexpr std::size_t kSlots = 2;
  float inverse_rate;  ///< 1 / rate
  float moves;         ///< 0: the rate is 0 and the parameter stays (inverse_rate 1); else 1
  float beta, l1, l2;
  CENTROID_RULE float next(float p, float gradient, float& linear, float& square) const {
    constexpr float kTiny = std::numeric_limits<float>::min();
    const float squares = square + gradient * gradient;
    const float g = moves * gradient;
    const float strength = (beta + std::sqrt(squares)) * inverse_rate + l2;
    // Zero terms and signs replace branches, so that the loop vectorises on every instruction set.
    // If the sum of squares overflows, the parameter becomes NaN instead of staying forever.
    const float kept = p == 0 ? linear : 0.0f;
    const float edge = std::copysign(p == 0 ? 0.0f : l1, p);
    const float z = kept - p * strength - edge + g;
    linear = z;
    square = squares;
    const float over = std::fabs(z) - l1;
    const float shrunk = 0 - std::copysign(over <= 0 ? 0.0f : over, z) / strength;
    // If the sign does not change, this is the same number with less rounding.
    const float stepped = p - g / strength;
    const float stays = 0.5f + std::copysign(0.5f, stepped * p - kTiny);
    return stays * stepped + (1 - stays) * shrunk;
  }
};

/// One step of an optimizer: the rule with that step's numbers.
using Step =
    std::variant<Sgd, Momentum<false>, Momentum<true>, Adagrad, Adam<false>, Adam<true>, Ftrl>;

/// Layout of norm.h's sum_of_squares.
constexpr std::uint64_t kSquaresBlock = 4096, kSquaresLanes = 128, kSquaresTotals = 256;

/// norm.h: clip_factor.
CENTROID_RULE float clip_factor_of(double norm, double bound) {
  const bool is_finite = norm <= std::numeric_limits<double>::max();
  return bound > 0 && is_finite && norm > bound ? static_cast<float>(bound / norm) : 1.0f;
}

}  // namespace centroid::rules
