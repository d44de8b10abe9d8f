#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "worker/model/loss.h"
#include "worker/model/model.h"

namespace centroid::worker::mlp_test {
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

/// Where the tensor of that name begins; nothing: there is none.
std::optional<std::size_t> position_of(const Model& model, const std::string& name) {
  std::size_t at = 0;
  for (const auto& tensor : model.manifest()) {
    if (tensor.name == name) return at;
    at += tensor.elements();
  }
  return std::nullopt;
}

using Rows = std::vector<std::vector<double>>;

/// What batch normalisation saw in one column.
struct Column {
  double mean = 0, square = 0;  ///< about the mean, divided by the rows
};

/// Mean loss by the definition, in double precision: the oracle. `columns` gets the moments of each
/// normalised layer's product, if it is wanted. With `is_training` a batch of two rows or more is
/// normalised with its own moments.
double reference_loss(const Model& model, const Example& e, const std::vector<double>& params,
                      bool is_training = true,
                      std::vector<std::vector<Column>>* columns = nullptr) {
  const bool is_gelu = model.spec().find(",gelu") != std::string::npos;
  const std::size_t rows = e.y.size();
  Rows a;
  for (std::size_t s = 0; s < rows; ++s)
    a.emplace_back(e.x.begin() + static_cast<std::ptrdiff_t>(s * model.features()),
                   e.x.begin() + static_cast<std::ptrdiff_t>((s + 1) * model.features()));
  for (std::size_t layer = 0;; ++layer) {
    const auto at = [&](const std::string& kind, const std::string& what) {
      return position_of(model, kind + "." + std::to_string(layer) + "." + what);
    };
    const auto weight = at("layers", "weight");
    if (!weight) break;
    const auto bias = at("layers", "bias"), scale = at("norms", "weight");
    const bool is_last = !position_of(model, "layers." + std::to_string(layer + 1) + ".weight");
    const std::size_t in = a.front().size();
    std::size_t out = 0;
    for (const auto& tensor : model.manifest())
      if (tensor.name == "layers." + std::to_string(layer) + ".weight") out = tensor.shape[0];
    Rows z(rows, std::vector<double>(out));
    std::vector<Column> seen(out);
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t s = 0; s < rows; ++s) {
        z[s][o] = bias ? params[*bias + o] : 0;
        for (std::size_t i = 0; i < in; ++i) z[s][o] += params[*weight + o * in + i] * a[s][i];
      }
      if (scale) {
        Column& of = seen[o];
        for (std::size_t s = 0; s < rows; ++s) of.mean += z[s][o] / static_cast<double>(rows);
        for (std::size_t s = 0; s < rows; ++s)
          of.square += (z[s][o] - of.mean) * (z[s][o] - of.mean) / static_cast<double>(rows);
        const bool is_own = is_training && rows > 1;
        const double mean = is_own ? of.mean : params[*at("norms", "running_mean") + o];
        const double square = is_own ? of.square : params[*at("norms", "running_var") + o];
        for (std::size_t s = 0; s < rows; ++s)
          z[s][o] = (z[s][o] - mean) / std::sqrt(square + 1e-5) * params[*scale + o] +
                    params[*at("norms", "bias") + o];
      }
      for (std::size_t s = 0; s < rows && !is_last; ++s)
        z[s][o] =
            is_gelu ? z[s][o] * 0.5 * std::erfc(-z[s][o] / std::sqrt(2.0)) : std::max(z[s][o], 0.0);
    }
    if (scale && columns != nullptr) columns->push_back(seen);
    a = z;
  }
  double loss = 0;
  for (std::size_t s = 0; s < rows; ++s) {
    double sum = 0;
    for (const double logit : a[s]) sum += std::exp(logit);
    loss += std::log(sum) - a[s][e.y[s]];
  }
  return loss / static_cast<double>(rows);
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

TEST(MakeModel, NormalisesLayersInFrontOfTheirActivation) {
  const auto model = model_of("mlp:4-3-5-2,norm=batch");
  EXPECT_EQ(model->spec(), "mlp:4-3-5-2,relu,norm=batch");
  EXPECT_EQ(model_of("mlp:4-3-2,gelu,norm=batch")->spec(), "mlp:4-3-2,gelu,norm=batch");
  EXPECT_EQ(model_of("mlp:4-3-2,gelu,norm=none")->spec(), "mlp:4-3-2,gelu");
  const Manifest expected = {
      {"layers.0.weight", DType::kF32, {3, 4}},   {"norms.0.weight", DType::kF32, {3}},
      {"norms.0.bias", DType::kF32, {3}},         {"layers.1.weight", DType::kF32, {5, 3}},
      {"norms.1.weight", DType::kF32, {5}},       {"norms.1.bias", DType::kF32, {5}},
      {"layers.2.weight", DType::kF32, {2, 5}},   {"layers.2.bias", DType::kF32, {2}},
      {"norms.0.running_mean", DType::kF32, {3}}, {"norms.0.running_var", DType::kF32, {3}},
      {"norms.1.running_mean", DType::kF32, {5}}, {"norms.1.running_var", DType::kF32, {5}}};
  EXPECT_EQ(model->manifest(), expected);
  EXPECT_EQ(trained_elements(model->manifest()), 12 + 6 + 15 + 10 + 12U);
  std::vector<float> params(elements_of(*model), 7);
  model->initialize(1, params);
  for (const std::string norm : {"norms.0.", "norms.1."})
    for (const auto& [name, value] : {std::pair("weight", 1.0F),
                                      {"bias", 0.0F},
                                      {"running_mean", 0.0F},
                                      {"running_var", 1.0F}}) {
      const std::size_t at = *position_of(*model, norm + name);
      for (std::size_t i = at; i < at + 3; ++i) EXPECT_EQ(params[i], value) << norm << name;
    }
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
      {"mlp:4-2,norm=layer", "'norm=layer' is neither norm=none nor norm=batch"},
      {"mlp:4-2,norm=batch,relu", "neither"},
      {"mlp:4-2,relunorm=batch", "neither"},
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
  for (const std::string activation : {"relu", "gelu", "relu,norm=batch", "gelu,norm=batch"})
    for (const std::string shape : {"mlp:5-3", "mlp:4-7-3", "mlp:6-9-5-4", "mlp:1-17-2"})
      for (const std::size_t samples : {1, 3, 13}) {
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
        for (std::size_t i = 0; i < trained_elements(model->manifest()); ++i) {
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

/// Running values move by a tenth of the way to the batch's, the variance with n - 1 (PyTorch).
TEST(Step, TheGradientOfABufferIsWhatItLoses) {
  for (const std::size_t samples : {1, 2, 13}) {
    SCOPED_TRACE(samples);
    const auto model = model_of("mlp:6-9-5-4,gelu,norm=batch");
    const auto params = random_params(*model, 3);
    const Example e = random_example(*model, samples, 17 + samples);
    std::vector<float> gradient(params.size(), 99.0F);
    model->step(e.batch(), params, gradient, kIgnore);
    std::vector<std::vector<Column>> columns;
    reference_loss(*model, e, {params.begin(), params.end()}, true, &columns);
    ASSERT_EQ(columns.size(), 2U);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::string norm = "norms." + std::to_string(layer);
      const std::size_t mean = *position_of(*model, norm + ".running_mean"),
                        variance = *position_of(*model, norm + ".running_var");
      for (std::size_t j = 0; j < columns[layer].size(); ++j) {
        const Column& of = columns[layer][j];
        const double n = static_cast<double>(samples);
        const double new_mean = 0.9 * params[mean + j] + 0.1 * of.mean;
        const double new_variance = 0.9 * params[variance + j] + 0.1 * of.square * n / (n - 1);
        const bool is_one = samples == 1;  // which has no variance
        EXPECT_NEAR(params[mean + j] - gradient[mean + j], is_one ? params[mean + j] : new_mean,
                    1e-5);
        EXPECT_NEAR(params[variance + j] - gradient[variance + j],
                    is_one ? params[variance + j] : new_variance, 1e-5);
      }
    }
  }
}

TEST(Evaluate, NormalisesWithTheRunningValues) {
  for (const std::string activation : {"relu", "gelu"}) {
    const auto model = model_of("mlp:6-9-5-4," + activation + ",norm=batch");
    auto params = random_params(*model, 5);
    const Example e = random_example(*model, 40, 6);
    std::vector<float> gradient(params.size());
    const double trained = model->step(e.batch(), params, gradient, kIgnore).loss_sum / 40;
    const double evaluated = model->evaluate(e.batch(), params).loss_sum / 40;
    const std::vector<double> exact(params.begin(), params.end());
    EXPECT_NEAR(evaluated, reference_loss(*model, e, exact, false), 1e-5);
    EXPECT_GT(std::abs(evaluated - trained), 1e-3);
    // Sums of changes may bring a variance below 0, which then counts as 0.
    const std::size_t at = *position_of(*model, "norms.0.running_var");
    params[at] = 0;
    const double at_zero = model->evaluate(e.batch(), params).loss_sum;
    params[at] = -0.5F;
    EXPECT_EQ(model->evaluate(e.batch(), params).loss_sum, at_zero);
    params[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(model->evaluate(e.batch(), params).loss_sum));
  }
}

TEST(Step, AnnouncesEveryTensorOnceBackwardsAndFinal) {
  for (const std::string spec : {"mlp:6-9-5-4", "mlp:6-9-5-4,norm=batch"}) {
    const auto model = model_of(spec);
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
    std::vector<std::uint32_t> backwards(model->manifest().size());
    std::iota(backwards.rbegin(), backwards.rend(), 0U);
    EXPECT_EQ(order, backwards);
    EXPECT_EQ(end, 0U);
  }
}

TEST(Step, AnEmptyBatchGivesZerosAndStillAnnouncesEveryTensor) {
  const auto model = model_of("mlp:4-3-2,norm=batch");
  const auto params = random_params(*model, 1);
  std::vector<float> gradient(params.size(), 99.0F);
  std::vector<std::uint32_t> order;
  const auto note = [&](TensorId tensor) { order.push_back(tensor.value); };
  const StepResult result = model->step({}, params, gradient, note);
  EXPECT_EQ(result.loss_sum, 0.0);
  EXPECT_EQ(result.correct, 0U);
  EXPECT_THAT(gradient, testing::Each(0.0F));
  EXPECT_THAT(order, ElementsAre(6, 5, 4, 3, 2, 1, 0));
  EXPECT_EQ(model->evaluate({}, params).loss_sum, 0.0);
}

TEST(Step, RepeatsBitForBitWhateverRanBefore) {
  for (const std::string activation : {"relu", "gelu", "gelu,norm=batch"}) {
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
}  // namespace centroid::worker::mlp_test
