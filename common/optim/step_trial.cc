#include "common/optim/step_trial.h"

#include <algorithm>
#include <cstddef>

#include "common/optim/optimizer.h"

namespace centroid {

namespace {

constexpr std::size_t kBlock = 16384;  // with its gradient and slots in a cache of the second level

// With moderate numbers, at most 2^32, and these limits no intermediate result of a rule exceeds
// 2^124: e.g. adam's mean is at most 2^43, over an epsilon of 2^-40, times a step of 2^20.
constexpr float kMostRate = 1 << 20, kMostDecay = 1 << 10, kMostL1 = 4294967296.0F;
constexpr float kLeastDivisor = 0x1p-40F;

struct Bounded {
  bool operator()(const rules::Sgd& r) const { return is_small(r.rate, r.decay); }
  template <bool kNesterov>
  bool operator()(const rules::Momentum<kNesterov>& r) const {
    return is_small(r.rate, r.decay);
  }
  bool operator()(const rules::Adagrad& r) const {
    return is_small(r.rate, r.decay) && r.epsilon >= kLeastDivisor;
  }
  template <bool kYogi>
  bool operator()(const rules::Adam<kYogi>& r) const {
    return is_small(r.step_size, r.l2_decay) && r.decay <= kMostDecay && r.epsilon >= kLeastDivisor;
  }
  bool operator()(const rules::Ftrl& r) const {
    return is_small(r.inverse_rate, r.l2) && r.l1 <= kMostL1 && r.beta <= kMostL1 &&
           r.beta * r.inverse_rate >= kLeastDivisor;
  }
  static bool is_small(float rate, float decay) { return rate <= kMostRate && decay <= kMostDecay; }
};

}  // namespace

bool is_bounded(const rules::Step& rule) { return std::visit(Bounded(), rule); }

Magnitude StepTrial::step(const rules::Step& rule, std::span<const float> params,
                          std::span<const float> gradient,
                          std::span<const std::span<const float>> slots, float factor) {
  params_.resize(kBlock);
  for (std::size_t k = 0; k < slots.size(); ++k) slots_[k].resize(kBlock);
  std::array<std::span<float>, 2> copies;
  Magnitude largest = Magnitude::kModerate;
  for (std::size_t at = 0; at < params.size() && largest != Magnitude::kInfinite; at += kBlock) {
    const std::size_t n = std::min(kBlock, params.size() - at);
    const std::span<float> out = std::span(params_).first(n);
    std::span<const float> scaled = gradient.subspan(at, n);
    if (factor != 1) {
      std::ranges::transform(scaled, out.begin(), [factor](float g) { return g * factor; });
      scaled = out;
    }
    for (std::size_t k = 0; k < slots.size(); ++k) {
      copies[k] = std::span(slots_[k]).first(n);
      std::ranges::copy(slots[k].subspan(at, n), copies[k].begin());
    }
    run_step(rule, params.subspan(at, n), scaled, std::span(copies).first(slots.size()), out);
    largest = std::max(largest, magnitude_of(out));
    for (std::size_t k = 0; k < slots.size(); ++k)
      largest = std::max(largest, magnitude_of(copies[k]));
  }
  return largest;
}

Magnitude StepTrial::step_at(const rules::Step& rule, std::span<const std::uint32_t> index,
                             std::span<const float> gradient, std::span<const float> params) {
  gradient_.resize(kBlock);
  Magnitude largest = Magnitude::kModerate;
  for (std::size_t at = 0; at < index.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, index.size() - at);
    const std::span<float> values = std::span(gradient_).first(n);
    for (std::size_t j = 0; j < n; ++j) values[j] = params[index[at + j]];
    largest = std::max(largest, step(rule, values, gradient.subspan(at, n), {}));
  }
  return largest;
}

}  // namespace centroid
