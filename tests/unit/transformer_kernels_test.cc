// The transformer's loops against their definitions in double precision, and their ways back
// against central differences of those definitions.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/tensor/multiversion.h"
#include "worker/model/attention.h"
#include "worker/model/elements.h"
#include "worker/model/kernels.h"

namespace centroid::worker::transformer_kernels_test {
namespace {

using Numbers = std::vector<double>;

std::vector<float> random_floats(std::size_t n, std::uint64_t seed, double spread = 1) {
  CounterRng rng(seed);
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(spread * rng.normal());
  return out;
}

Numbers exact(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Derivative of sum_i direction[i] * f(x)[i] by central differences.
Numbers slope_of(const std::function<Numbers(const Numbers&)>& f, Numbers x,
                 const std::vector<float>& direction) {
  constexpr double kStep = 1e-5;
  Numbers out(x.size());
  const auto value = [&] {
    const Numbers y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * double{direction[i]};
    return sum;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double middle = x[i];
    x[i] = middle + kStep;
    const double above = value();
    x[i] = middle - kStep;
    const double below = value();
    x[i] = middle;
    out[i] = (above - below) / (2 * kStep);
  }
  return out;
}

void expect_near(const std::vector<float>& got, const Numbers& expected, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], bound * largest) << i;
}

TEST(Elements, ExponentialIsRightToTwoUnitsOverItsWholeRange) {
  double worst = 0;
  for (double x = -87.3; x < 88.7; x += 0.00137) {
    const auto f = static_cast<float>(x);
    const double right = std::exp(double{f});
    worst = std::max(worst, std::abs(double{exp_of(f)} - right) / right);
  }
  EXPECT_LE(worst, 2.4e-7);
  EXPECT_EQ(exp_of(0.0F), 1.0F);
  EXPECT_EQ(exp_of(-200.0F), 0.0F);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(-kInfinity), 0.0F);
  EXPECT_EQ(exp_of(200.0F), kInfinity);
  EXPECT_EQ(exp_of(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Elements, ActivationsAndTheirSlopes) {
  for (double x = -12; x < 12; x += 0.00731) {
    const auto f = static_cast<float>(x);
    const double v = double{f};
    const double phi = 0.5 * std::erfc(-v / std::sqrt(2.0));
    const double bell = std::exp(-0.5 * v * v) / std::sqrt(2 * std::acos(-1.0));
    ASSERT_NEAR(gelu_of(f).value, v * phi, 3e-7 * (1 + std::abs(v))) << x;
    ASSERT_NEAR(gelu_of(f).slope, phi + v * bell, 1e-6) << x;
    const double sigma = 1 / (1 + std::exp(-v));
    ASSERT_NEAR(silu_of(f), v * sigma, 3e-7 * (1 + std::abs(v))) << x;
    ASSERT_NEAR(silu_slope_of(f), sigma * (1 + v * (1 - sigma)), 1e-6) << x;
  }
  EXPECT_EQ(silu_slope_of(-200.0F), 0.0F);
  EXPECT_EQ(silu_slope_of(200.0F), 1.0F);
}

TEST(Norm, AndItsWayBack) {
  for (const bool is_layer : {false, true})
    for (const std::size_t width : {1, 5, 16, 37}) {
      SCOPED_TRACE(std::to_string(width) + (is_layer ? " layer" : " rms"));
      constexpr std::size_t kRows = 3;
      const auto x = random_floats(kRows * width, 1), weight = random_floats(width, 2);
      const auto bias = random_floats(width, 3), dy = random_floats(kRows * width, 4);
      const auto reference = [&](const Numbers& in, const Numbers& w, const Numbers& b) {
        Numbers out(in.size());
        for (std::size_t r = 0; r < kRows; ++r) {
          double mean = 0, squares = 0;
          for (std::size_t j = 0; j < width; ++j) mean += in[r * width + j] / double(width);
          if (!is_layer) mean = 0;
          for (std::size_t j = 0; j < width; ++j)
            squares += std::pow(in[r * width + j] - mean, 2) / double(width);
          for (std::size_t j = 0; j < width; ++j)
            out[r * width + j] = (in[r * width + j] - mean) / std::sqrt(squares + 1e-5) * w[j] +
                                 (is_layer ? b[j] : 0);
        }
        return out;
      };
      const kernels::Norm norm{is_layer, weight.data(), is_layer ? bias.data() : nullptr};
      const auto branch = random_floats(x.size(), 5);
      std::vector<float> sum(x.size()), y(x.size()), stats(2 * kRows);
      kernels::add_norm(norm, {}, kRows, width, x.data(), branch.data(), sum.data(), y.data(),
                        stats.data());
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], x[i] + branch[i]);
      const Numbers in = exact(sum), w = exact(weight), b = exact(bias);
      expect_near(y, reference(in, w, b), 1e-5);
      std::vector<float> dx(x.size(), 0.5F), dw(width, 7), db(width, 7);
      kernels::norm_back(norm, kRows, width, sum.data(), stats.data(), dy.data(), dx.data(),
                         dw.data(), db.data());
      for (float& d : dx) d -= 0.5F;  // it adds
      // An input of one number has a spread of about nothing: slopes of up to 1 / sqrt(1e-5).
      const double bound = width == 1 ? 2e-3 : 1e-5;
      expect_near(dx, slope_of([&](const Numbers& v) { return reference(v, w, b); }, in, dy),
                  bound);
      expect_near(dw, slope_of([&](const Numbers& v) { return reference(in, v, b); }, w, dy), 1e-5);
      Numbers bias_sums(width);
      for (std::size_t i = 0; i < dy.size(); ++i) bias_sums[i % width] += double{dy[i]};
      expect_near(db, bias_sums, 1e-5);
    }
}

TEST(SwiGlu, AndItsWayBack) {
  constexpr std::size_t kRows = 3, kWidth = 21;
  auto in = random_floats(kRows * 2 * kWidth, 1);
  const auto direction = random_floats(kRows * kWidth, 2);
  const auto reference = [&](const Numbers& v) {
    Numbers out(kRows * kWidth);
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t j = 0; j < kWidth; ++j) {
        const double gate = v[r * 2 * kWidth + j];
        out[r * kWidth + j] = gate / (1 + std::exp(-gate)) * v[r * 2 * kWidth + kWidth + j];
      }
    return out;
  };
  std::vector<float> out(kRows * kWidth);
  kernels::swiglu(kRows, kWidth, in.data(), out.data());
  expect_near(out, reference(exact(in)), 1e-6);
  const Numbers slopes = slope_of(reference, exact(in), direction);
  kernels::swiglu_back(kRows, kWidth, direction.data(), in.data());
  expect_near(in, slopes, 1e-6);
}

/// Softmax attention by its definition.
Numbers attention_reference(const Numbers& qkv, std::size_t samples, std::size_t context,
                            std::size_t heads, std::size_t head_width) {
  const std::size_t width = heads * head_width;
  Numbers out(samples * context * width);
  const auto at = [&](std::size_t s, std::size_t t, std::size_t part, std::size_t h,
                      std::size_t j) {
    return qkv[(s * context + t) * 3 * width + part * width + h * head_width + j];
  };
  for (std::size_t s = 0; s < samples; ++s)
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t t = 0; t < context; ++t) {
        Numbers p(t + 1);
        double sum = 0;
        for (std::size_t k = 0; k <= t; ++k) {
          double dot = 0;
          for (std::size_t j = 0; j < head_width; ++j) dot += at(s, t, 0, h, j) * at(s, k, 1, h, j);
          sum += p[k] = std::exp(dot / std::sqrt(double(head_width)));
        }
        for (std::size_t k = 0; k <= t; ++k)
          for (std::size_t j = 0; j < head_width; ++j)
            out[(s * context + t) * width + h * head_width + j] += p[k] / sum * at(s, k, 2, h, j);
      }
  return out;
}

TEST(Attention, AndItsWayBack) {
  struct Shape {
    std::size_t samples, context, heads, head_width;
  };
  // One token; less than a block of rows; exactly one; more than one and a half.
  for (const Shape& shape :
       {Shape{2, 1, 2, 3}, Shape{3, 5, 2, 4}, Shape{1, 64, 1, 2}, Shape{1, 101, 2, 3}}) {
    const auto [samples, context, heads, head_width] = shape;
    SCOPED_TRACE(context);
    const std::size_t width = heads * head_width, rows = samples * context;
    const auto qkv = random_floats(rows * 3 * width, 1), dout = random_floats(rows * width, 2);
    std::vector<float> out(rows * width), lse(rows * heads), delta(rows * heads);
    std::vector<float> scratch(attention_scratch(context)), dqkv(qkv.size(), 99);
    const Attention attention{samples,    context,    heads,         head_width,
                              qkv.data(), lse.data(), scratch.data()};
    attention.forward(out.data());
    const auto reference = [&](const Numbers& v) {
      return attention_reference(v, samples, context, heads, head_width);
    };
    expect_near(out, reference(exact(qkv)), 2e-6);
    attention.backward(out.data(), dout.data(), delta.data(), dqkv.data());
    expect_near(dqkv, slope_of(reference, exact(qkv), dout), 1e-5);
  }
}

TEST(Attention, ALaterTokenChangesNothingBeforeIt) {
  constexpr std::size_t kContext = 80, kWidth = 8;
  auto qkv = random_floats(kContext * 3 * kWidth, 1);
  std::vector<float> out(kContext * kWidth), lse(kContext * 2),
      scratch(attention_scratch(kContext));
  const Attention attention{1, kContext, 2, 4, qkv.data(), lse.data(), scratch.data()};
  attention.forward(out.data());
  const auto before = out;
  for (std::size_t i = 70 * 3 * kWidth; i < qkv.size(); ++i) qkv[i] += 3;
  attention.forward(out.data());
  for (std::size_t i = 0; i < 70 * kWidth; ++i) ASSERT_EQ(out[i], before[i]) << i;
  EXPECT_NE(out.back(), before.back());
}

TEST(CrossEntropy, AndItsGradientWithLabelsLeftOut) {
  constexpr std::size_t kClasses = 19;
  const std::vector<std::uint32_t> labels = {3, kNoTarget, 18, 0};
  auto logits = random_floats(labels.size() * kClasses, 1, 3);
  const auto reference = [&](const Numbers& v) {
    double loss = 0;
    for (std::size_t r = 0; r < labels.size(); ++r) {
      if (labels[r] == kNoTarget) continue;
      double sum = 0;
      for (std::size_t j = 0; j < kClasses; ++j) sum += std::exp(v[r * kClasses + j]);
      loss += std::log(sum) - v[r * kClasses + labels[r]];
    }
    return Numbers{loss};
  };
  const Numbers slopes = slope_of(reference, exact(logits), {0.25F});
  const double loss = reference(exact(logits))[0];
  const StepResult result = kernels::cross_entropy(labels, kClasses, 0.25F, true, logits.data());
  EXPECT_NEAR(result.loss_sum, loss, 1e-5);
  EXPECT_EQ(result.targets, 3U);
  expect_near(logits, slopes, 1e-6);
}

TEST(CrossEntropy, OfEqualLogitsTheFirstCountsAndHugeOnesDoNotOverflow) {
  std::vector<float> logits = {1, 2, 2, 1e4F, -1e4F, 0};
  const std::vector<std::uint32_t> labels = {2, 1};
  const StepResult result = kernels::cross_entropy(labels, 3, 1, false, logits.data());
  EXPECT_EQ(result.correct, 0U);
  EXPECT_NEAR(result.loss_sum, 2e4 + std::log(std::exp(-1.0) + 2), 1e-2);
  logits = {1, 2, 2, std::numeric_limits<float>::quiet_NaN(), 0, 0};
  EXPECT_TRUE(std::isnan(kernels::cross_entropy(labels, 3, 1, false, logits.data()).loss_sum));
}

TEST(Dropout, KeepsItsShareAndTheSameElementsEveryTime) {
  constexpr std::size_t kRows = 64, kWidth = 250;
  auto dropout = kernels::Dropout::of(0.25);
  const std::vector<std::uint64_t> keys = {11, 22};
  dropout.keys = keys;
  dropout.context = 32;
  dropout.site = 3;
  const std::vector<float> ones(kRows * kWidth, 1);
  std::vector<float> a(ones.size()), b(ones.size(), 1);
  kernels::drop(dropout, kRows, kWidth, ones.data(), a.data());
  kernels::add(dropout, kRows, kWidth, ones.data(), b.data());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a[i] == 0 || a[i] == 4.0F / 3) << a[i];
    ASSERT_EQ(b[i], 1 + a[i]);
    kept += a[i] != 0 ? 1 : 0;
  }
  EXPECT_NEAR(double(kept) / double(a.size()), 0.75, 4 * std::sqrt(0.75 * 0.25 / double(a.size())));
  // The second sample alone draws what it draws behind the first.
  dropout.keys = std::span(keys).subspan(1);
  kernels::drop(dropout, 32, kWidth, ones.data(), b.data());
  EXPECT_TRUE(std::equal(b.begin(), b.begin() + 32 * kWidth, a.begin() + 32 * kWidth));
  dropout.site = 4;
  kernels::drop(dropout, 32, kWidth, ones.data(), b.data());
  EXPECT_FALSE(std::equal(b.begin(), b.begin() + 32 * kWidth, a.begin() + 32 * kWidth));
}

TEST(Kernels, EveryInstructionSetGivesTheSameBits) {
  constexpr std::size_t kRows = 7, kWidth = 45;
  const auto x = random_floats(kRows * kWidth, 1), w = random_floats(kWidth, 2);
  const auto run = [&] {
    std::vector<float> y(x.size()), stats(2 * kRows), out(x), lse(kWidth), sum(x.size());
    const kernels::Norm norm{true, w.data(), w.data()};
    kernels::add_norm(norm, {}, kRows, kWidth, x.data(), x.data(), sum.data(), y.data(),
                      stats.data());
    kernels::gelu(x.size(), y.data(), y.data());
    kernels::causal_softmax(kRows, 30, kWidth, 0.5F, out.data(), lse.data(), 1);
    kernels::gelu_back(x.size(), x.data(), out.data());
    y.insert(y.end(), out.begin(), out.end());
    y.insert(y.end(), lse.begin(), lse.end());
    kernels::norm_back(norm, kRows, kWidth, sum.data(), stats.data(), x.data(), y.data(),
                       y.data() + 2 * x.size(), nullptr);
    return y;
  };
  std::vector<std::vector<float>> results;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    const Isa before = limit_isa(isa);
    results.push_back(run());
    limit_isa(before);
  }
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

}  // namespace
}  // namespace centroid::worker::transformer_kernels_test
