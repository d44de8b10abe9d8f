#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "worker/model/loss.h"
#include "worker/model/model.h"

namespace centroid::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Model> model_of(const std::string& spec) {
  auto model = make_model(spec);
  CENTROID_CHECK(model.ok());
  return std::move(model).value();
}

std::size_t elements_of(const Model& model) {
  std::size_t n = 0;
  for (const auto& tensor : model.manifest()) n += tensor.elements();
  return n;
}

const auto kIgnore = [](TensorId) {};

struct Example {
  std::vector<float> x;
  std::vector<std::uint32_t> y;
  Batch batch() const { return {x, y, y.size()}; }
};

Example random_example(const Model& model, std::size_t samples, std::uint64_t seed) {
  CounterRng rng(seed);
  Example e;
  for (std::size_t i = 0; i < samples * model.features(); ++i)
    e.x.push_back(static_cast<float>(rng.normal()));
  for (std::size_t i = 0; i < samples; ++i)
    e.y.push_back(static_cast<std::uint32_t>(rng.below(model.classes())));
  return e;
}

std::vector<float> random_params(const Model& model, std::uint64_t seed) {
  std::vector<float> params(elements_of(model));
  model.initialize(seed, params);
  CounterRng rng(seed, 99);
  for (float& p : params) p += static_cast<float>(0.1 * rng.normal());  // biases too
  return params;
}

/// Mean loss by the definition, in double precision: the oracle.
double reference_loss(const Model& model, const Example& e, const std::vector<double>& params) {
  const bool is_gelu = model.spec().ends_with(",gelu");
  const auto& manifest = model.manifest();
  double loss = 0;
  for (std::size_t s = 0; s < e.y.size(); ++s) {
    std::vector<double> a(e.x.begin() + static_cast<std::ptrdiff_t>(s * model.features()),
                          e.x.begin() + static_cast<std::ptrdiff_t>((s + 1) * model.features()));
    std::size_t at = 0;
    for (std::size_t t = 0; t < manifest.size(); t += 2) {
      const std::size_t out = manifest[t].shape[0];
      const std::size_t in = manifest[t].shape[1];
      std::vector<double> z(out);
      for (std::size_t o = 0; o < out; ++o) {
        z[o] = params[at + out * in + o];
        for (std::size_t i = 0; i < in; ++i) z[o] += params[at + o * in + i] * a[i];
        if (t + 2 < manifest.size())
          z[o] = is_gelu ? z[o] * 0.5 * std::erfc(-z[o] / std::sqrt(2.0)) : std::max(z[o], 0.0);
      }
      at += out * in + out;
      a = z;
    }
    double sum = 0;
    for (const double logit : a) sum += std::exp(logit);
    loss += std::log(sum) - a[e.y[s]];
  }
  return loss / static_cast<double>(e.y.size());
}

TEST(MakeModel, ReadsTheSpecAndNamesTensorsAsPyTorch) {
  const auto model = model_of("mlp:4-3-2");
  EXPECT_EQ(model->spec(), "mlp:4-3-2,relu");
  EXPECT_EQ(model_of("mlp:4-2,gelu")->spec(), "mlp:4-2,gelu");
  EXPECT_EQ(model->features(), 4U);
  EXPECT_EQ(model->classes(), 2U);
  const Manifest expected = {{"layers.0.weight", DType::kF32, {3, 4}},
                             {"layers.0.bias", DType::kF32, {3}},
                             {"layers.1.weight", DType::kF32, {2, 3}},
                             {"layers.1.bias", DType::kF32, {2}}};
  EXPECT_EQ(model->manifest(), expected);
  EXPECT_EQ(model->clone()->manifest(), expected);
}

TEST(MakeModel, RefusesBadSpecsAndSaysWhy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "unknown kind"},
      {"cnn:3-2", "unknown kind"},
      {"mlp:", "width 1 is ''"},
      {"mlp:4", "fewer than two"},
      {"mlp:4-", "width 2 is ''"},
      {"mlp:4--2", "width 2 is ''"},
      {"mlp:0-2", "width 1 is '0'"},
      {"mlp:4-1", "below 2"},
      {"mlp:4-2x", "width 2 is '2x'"},
      {"mlp:4-99999999999999999999", "width 2"},
      {"mlp:4-2,tanh", "'tanh' is neither"},
      {"mlp:4-2,relu,gelu", "neither"},
      {"mlp:1000000-1000000-2", "parameters"}};
  for (const auto& [spec, why] : cases) {
    const auto model = make_model(spec);
    ASSERT_FALSE(model.ok()) << spec;
    EXPECT_EQ(model.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(model.error().message(), HasSubstr(why)) << spec;
  }
}

TEST(Initialize, IsDeterministicAndHasTheSpreadOfTheRule) {
  const auto model = model_of("mlp:64-512-10");
  std::vector<float> a(elements_of(*model), 7.0F);
  std::vector<float> b(a.size(), 8.0F);
  model->initialize(1, a);
  model->initialize(1, b);
  EXPECT_EQ(a, b);
  model->initialize(2, b);
  EXPECT_NE(a, b);
  const auto deviation = [&](std::size_t begin, std::size_t count) {
    double squares = 0;
    for (std::size_t i = begin; i < begin + count; ++i) squares += double{a[i]} * double{a[i]};
    return std::sqrt(squares / static_cast<double>(count));
  };
  EXPECT_NEAR(deviation(0, 64 * 512), std::sqrt(2.0 / 64), 0.003);  // He
  EXPECT_EQ(deviation(64 * 512, 512), 0.0);
  EXPECT_NEAR(deviation(65 * 512, 512 * 10), std::sqrt(2.0 / (512 + 10)), 0.002);  // Glorot
  EXPECT_EQ(deviation(65 * 512 + 5120, 10), 0.0);
}

TEST(Step, GradientsAreTheDerivativesOfTheMeanLoss) {
  for (const std::string activation : {"relu", "gelu"})
    for (const std::string shape : {"mlp:5-3", "mlp:4-7-3", "mlp:6-9-5-4", "mlp:1-17-2"})
      for (const std::size_t samples : {1, 2, 13}) {
        SCOPED_TRACE(shape + "," + activation + " batch " + std::to_string(samples));
        const auto model = model_of(shape + "," + activation);
        const auto params = random_params(*model, 3);
        const Example e = random_example(*model, samples, 17 + samples);
        std::vector<float> gradient(params.size(), 99.0F);
        const StepResult result = model->step(e.batch(), params, gradient, kIgnore);
        std::vector<double> exact(params.begin(), params.end());
        const double mean = result.loss_sum / static_cast<double>(samples);
        EXPECT_NEAR(mean, reference_loss(*model, e, exact), 1e-5);
        double largest = 0;
        for (const float g : gradient) largest = std::max(largest, std::abs(double{g}));
        for (std::size_t i = 0; i < exact.size(); ++i) {
          constexpr double kStep = 1e-6;
          const double middle = exact[i];
          exact[i] = middle + kStep;
          const double above = reference_loss(*model, e, exact);
          exact[i] = middle - kStep;
          const double below = reference_loss(*model, e, exact);
          exact[i] = middle;
          ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-5 * (1 + largest)) << i;
        }
      }
}

TEST(Step, AnnouncesEveryTensorOnceBackwardsAndFinal) {
  const auto model = model_of("mlp:6-9-5-4");
  const auto params = random_params(*model, 1);
  const Example e = random_example(*model, 8, 2);
  std::vector<float> gradient(params.size());
  model->step(e.batch(), params, gradient, kIgnore);
  const auto expected = gradient;
  std::fill(gradient.begin(), gradient.end(), 99.0F);
  std::vector<std::uint32_t> order;
  std::size_t end = gradient.size();
  model->step(e.batch(), params, gradient, [&](TensorId tensor) {
    order.push_back(tensor.value);
    const std::size_t begin = end - model->manifest()[tensor.value].elements();
    for (std::size_t i = begin; i < end; ++i) ASSERT_EQ(gradient[i], expected[i]);
    end = begin;
  });
  EXPECT_THAT(order, ElementsAre(5, 4, 3, 2, 1, 0));
  EXPECT_EQ(end, 0U);
}

TEST(Step, AnEmptyBatchGivesZerosAndStillAnnouncesEveryTensor) {
  const auto model = model_of("mlp:4-3-2");
  const auto params = random_params(*model, 1);
  std::vector<float> gradient(params.size(), 99.0F);
  std::vector<std::uint32_t> order;
  const auto note = [&](TensorId tensor) { order.push_back(tensor.value); };
  const StepResult result = model->step({}, params, gradient, note);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(result.correct, 0U);
  EXPECT_THAT(gradient, testing::Each(0.0F));
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(model->evaluate({}, params).loss_sum, 0.0);
}

TEST(Step, RepeatsBitForBitWhateverRanBefore) {
  for (const std::string activation : {"relu", "gelu"}) {
    const auto model = model_of("mlp:64-96-10," + activation);
    const auto params = random_params(*model, 5);
    const Example e = random_example(*model, 33, 6);
    const Example longer = random_example(*model, 70, 7);
    std::vector<float> first(params.size());
    std::vector<float> second(params.size(), std::numeric_limits<float>::quiet_NaN());
    const StepResult one = model->step(e.batch(), params, first, kIgnore);
    model->step(longer.batch(), params, second, kIgnore);
    const StepResult two = model->step(e.batch(), params, second, kIgnore);
    EXPECT_EQ(first, second);
    EXPECT_EQ(one.loss_sum, two.loss_sum);
    model->clone()->step(e.batch(), params, second, kIgnore);
    EXPECT_EQ(first, second);
  }
}

TEST(Evaluate, SaysWhatStepSays) {
  for (const std::string activation : {"relu", "gelu"}) {
    const auto model = model_of("mlp:7-11-4," + activation);
    const auto params = random_params(*model, 5);
    const Example e = random_example(*model, 40, 6);
    std::vector<float> gradient(params.size());
    const StepResult trained = model->step(e.batch(), params, gradient, kIgnore);
    const StepResult evaluated = model->evaluate(e.batch(), params);
    EXPECT_EQ(trained.loss_sum, evaluated.loss_sum);
    EXPECT_EQ(trained.correct, evaluated.correct);
    EXPECT_GT(trained.correct, 0U);
    EXPECT_LT(trained.correct, 40U);
  }
}

TEST(Step, NotANumberIsPassedOn) {
  const auto model = model_of("mlp:3-4-2");
  auto params = random_params(*model, 5);
  params[0] = std::numeric_limits<float>::quiet_NaN();
  const Example e = random_example(*model, 2, 6);
  std::vector<float> gradient(params.size());
  const StepResult result = model->step(e.batch(), params, gradient, kIgnore);
  EXPECT_TRUE(std::isnan(result.loss_sum));
  EXPECT_EQ(result.correct, 0U);
}

TEST(SoftmaxCrossEntropy, HugeLogitsDoNotOverflow) {
  const std::vector<float> bias = {0, 0, 0};
  std::vector<float> logits = {1e4F, -1e4F, 0, 1e4F, -1e4F, 0};
  const std::vector<std::uint32_t> labels = {0, 1};
  const StepResult result = softmax_cross_entropy(
      labels, 3, bias.data(), 1.0F / static_cast<float>(labels.size()), logits.data(), true);
  EXPECT_NEAR(result.loss_sum, 2e4, 1e-2);
  EXPECT_EQ(result.correct, 1U);
  EXPECT_THAT(logits, ElementsAre(0, 0, 0, 0.5F, -0.5F, 0));
}

TEST(SoftmaxCrossEntropy, OfEqualLogitsTheFirstCounts) {
  const std::vector<float> bias = {1, 1};
  std::vector<float> logits = {2, 2, 2, 2};
  const std::vector<std::uint32_t> labels = {0, 1};
  const StepResult result =
      softmax_cross_entropy(labels, 2, bias.data(), 1.0F, logits.data(), false);
  EXPECT_NEAR(result.loss_sum, 2 * std::log(2.0), 1e-6);
  EXPECT_EQ(result.correct, 1U);
}

}  // namespace
}  // namespace centroid::worker
