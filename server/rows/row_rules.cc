#include "server/rows/row_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/random.h"

namespace centroid::server {
namespace {

constexpr float kBound = 1e30f;

float held(float x) { return std::min(std::max(x, -kBound), kBound); }

void adagrad(float rate, float epsilon, std::span<const float> gradient, float* values,
             float& sum) {
  // Four lanes added in a fixed order: the same bits with and without vector instructions.
  float lanes[4] = {};
  const std::size_t n = gradient.size();
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (std::size_t lane = 0; lane < 4; ++lane)
      lanes[lane] += gradient[i + lane] * gradient[i + lane];
  for (; i < n; ++i) lanes[i % 4] += gradient[i] * gradient[i];
  const float squares = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  sum = std::min(sum + squares / static_cast<float>(n), std::numeric_limits<float>::max());
  const float step = rate / (std::sqrt(sum) + epsilon);
  for (i = 0; i < n; ++i) values[i] = held(values[i] - step * gradient[i]);
}

}  // namespace

void initial_row(const RowSpec& spec, std::uint64_t key, std::span<float> out) {
  const RowInitializer& how = spec.initializer;
  if (how.kind == RowInitializer::Kind::kZeros) {
    std::ranges::fill(out, 0.0f);
    return;
  }
  const std::uint64_t row = mix64(spec.seed, key);
  for (std::size_t column = 0; column < out.size(); ++column) {
    CounterRng rng(row, column);
    const double x =
        how.kind == RowInitializer::Kind::kUniform ? 2 * rng.uniform() - 1 : rng.normal();
    out[column] = static_cast<float>(how.scale * x);
  }
}

void initial_slots(const RowSpec& spec, std::span<const float> values, std::span<float> slots) {
  std::ranges::fill(slots, 0.0f);
  if (spec.rule != RowRule::kFtrl) return;
  // The z that gives these values, so that the first update starts from them instead of 0.
  const double slope = spec.ftrl_beta / spec.learning_rate + spec.l2;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double w = values[i];
    if (w != 0) slots[i] = static_cast<float>(-w * slope - std::copysign(spec.l1, w));
  }
}

void update_row(const RowSpec& spec, double rate, std::span<const float> gradient,
                std::span<float> values, std::span<float> slots) {
  const auto step = static_cast<float>(rate);
  const std::size_t n = gradient.size();
  switch (spec.rule) {
    case RowRule::kSgd:
      for (std::size_t i = 0; i < n; ++i) values[i] = held(values[i] - step * gradient[i]);
      return;
    case RowRule::kAdagrad:
      return adagrad(step, static_cast<float>(spec.epsilon), gradient, values.data(), slots[0]);
    case RowRule::kFtrl:
      break;
  }
  // As in dense FTRL: a smaller rate is 0, so that no product with its inverse overflows.
  constexpr double kLeastRate = 1e-15;
  const auto inverse_rate = static_cast<float>(1 / std::max(rate, kLeastRate));
  const auto l1 = static_cast<float>(spec.l1), l2 = static_cast<float>(spec.l2);
  const auto beta = static_cast<float>(spec.ftrl_beta);
  for (std::size_t i = 0; i < n; ++i) {
    const float g = gradient[i], w = values[i];
    const float squares = std::min(slots[n + i] + g * g, std::numeric_limits<float>::max());
    if (rate < kLeastRate) {
      slots[n + i] = squares;
      continue;
    }
    const float strength = (beta + std::sqrt(squares)) * inverse_rate + l2;
    // As in common/optim/rules.h: z follows from a value that is not 0, at any rate.
    const float centre = w == 0 ? slots[i] : -w * strength - std::copysign(l1, w);
    const float z = held(centre + g);
    slots[i] = z;
    slots[n + i] = squares;
    const float stepped = held(w - g / strength);
    const float shrunk = held((std::copysign(l1, z) - z) / strength);
    values[i] = stepped * w > 0 ? stepped : std::fabs(z) <= l1 ? 0.0f : shrunk;
  }
}

}  // namespace centroid::server
