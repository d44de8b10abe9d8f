#include "worker/model/transformer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allocation_count.h"
#include "tests/support/examples.h"
#include "worker/model/elements.h"

namespace centroid::worker::transformer_test {
namespace {

using namespace test;

using testing::Each;
using testing::HasSubstr;

const auto kIgnore = [](TensorId) {};

TransformerConfig config_of(const std::string& spec) {
  auto config = TransformerConfig::parse(spec);
  if (!config.ok()) ADD_FAILURE() << config.error().message();
  return std::move(config).value();
}

Base base_of(const TransformerConfig& config) {
  return std::make_shared<const BaseWeights>(random_floats(elements_of(config.whole()), 77, 0.4));
}

Transformer model_of(const std::string& spec) {
  auto config = config_of(spec);
  auto base = config.lora.rank > 0 ? base_of(config) : nullptr;
  return Transformer(std::move(config), std::move(base));
}

std::vector<float> random_params(const Transformer& model, std::uint64_t seed) {
  auto params = random_floats(elements_of(model.manifest()), seed, 0.4);
  std::size_t at = 0;
  for (const auto& tensor : model.manifest()) {
    if (tensor.shape.size() == 1 && tensor.name.ends_with("weight"))
      for (std::size_t i = 0; i < tensor.elements(); ++i) params[at + i] += 1;
    at += tensor.elements();
  }
  return params;
}

// The model by its definition, in double precision: the oracle.

using Matrix = std::vector<double>;  // row-major

class Reference {
 public:
  Reference(const Transformer& model, const Example& e, bool is_training,
            std::span<const float> base)
      : config_(model.config()), e_(e), is_training_(is_training) {
    const Manifest whole = config_.whole();
    std::size_t at = 0;
    for (const auto& tensor : whole) {
      if (!base.empty())
        base_[tensor.name] =
            Matrix(base.begin() + static_cast<std::ptrdiff_t>(at),
                   base.begin() + static_cast<std::ptrdiff_t>(at + tensor.elements()));
      at += tensor.elements();
    }
  }

  double mean_loss(const std::vector<double>& params) {
    weights_ = base_;
    std::size_t at = 0;
    for (const auto& tensor : config_.trained()) {
      const auto begin = params.begin() + static_cast<std::ptrdiff_t>(at);
      weights_[tensor.name] = Matrix(begin, begin + static_cast<std::ptrdiff_t>(tensor.elements()));
      at += tensor.elements();
    }
    const std::size_t samples = e_.ids.size(), t = config_.context, d = config_.width;
    double loss = 0;
    for (std::size_t s = 0; s < samples; ++s) {
      const Matrix x = body(s);
      const std::size_t targets = config_.is_language() ? t : 1;
      for (std::size_t k = 0; k < targets; ++k) {
        const std::uint32_t label = e_.y[s * targets + k];
        if (label == kNoTarget) continue;
        const std::size_t row = config_.is_language() ? k : e_.lengths[s] - 1;
        const Matrix normed = norm({x.begin() + static_cast<std::ptrdiff_t>(row * d),
                                    x.begin() + static_cast<std::ptrdiff_t>((row + 1) * d)},
                                   "norm");
        const Matrix& head = weights_[config_.tied ? "embed.tokens.weight" : "head.weight"];
        double sum = 0, of_label = 0;
        for (std::size_t c = 0; c < config_.outputs(); ++c) {
          double logit = 0;
          for (std::size_t j = 0; j < d; ++j) logit += head[c * d + j] * normed[j];
          sum += std::exp(logit);
          if (c == label) of_label = logit;
        }
        loss += (std::log(sum) - of_label) / double(targets);
      }
    }
    return loss / double(samples);
  }

 private:
  Matrix norm(Matrix x, const std::string& name) {
    const std::size_t d = config_.width;
    const bool is_layer = config_.norm == TransformerConfig::Norm::kLayer;
    for (std::size_t r = 0; r < x.size() / d; ++r) {
      double mean = 0, squares = 0;
      for (std::size_t j = 0; j < d; ++j) mean += is_layer ? x[r * d + j] / double(d) : 0;
      for (std::size_t j = 0; j < d; ++j) squares += std::pow(x[r * d + j] - mean, 2) / double(d);
      for (std::size_t j = 0; j < d; ++j) {
        double& v = x[r * d + j];
        v = (v - mean) / std::sqrt(squares + 1e-5) * weights_[name + ".weight"][j];
        if (is_layer) v += weights_[name + ".bias"][j];
      }
    }
    return x;
  }

  Matrix drop(Matrix x, std::size_t sample, std::size_t width, double probability,
              std::uint64_t site) const {
    if (!is_training_ || probability == 0) return x;
    const auto settings = kernels::Dropout::of(probability);
    const std::uint64_t key = mix64(mix64(5, e_.ids[sample]), site);
    for (std::size_t r = 0; r < x.size() / width; ++r)
      for (std::size_t j = 0; j < width; ++j) {
        const std::uint64_t group = r * ((width + 3) / 4) + j / 4;
        const bool is_kept = (survivors_of_four(key, group, settings.threshold) >> (j % 4)) & 1U;
        x[r * width + j] *= is_kept ? double{settings.scale} : 0;
      }
    return x;
  }

  Matrix project(const Matrix& x, std::size_t in, std::size_t sample, const std::string& name,
                 std::uint64_t site) {
    const auto times = [](const Matrix& a, std::size_t width, const Matrix& w) {
      const std::size_t rows = a.size() / width, out = w.size() / width;
      Matrix product(rows * out);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < out; ++o)
          for (std::size_t i = 0; i < width; ++i)
            product[r * out + o] += a[r * width + i] * w[o * width + i];
      return product;
    };
    Matrix out = times(x, in, weights_[name + ".weight"]);
    if (weights_.contains(name + ".lora_A.weight")) {
      const Matrix low = times(drop(x, sample, in, config_.lora.dropout, site), in,
                               weights_[name + ".lora_A.weight"]);
      const Matrix more = times(low, config_.lora.rank, weights_[name + ".lora_B.weight"]);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += config_.lora.scale() * more[i];
    }
    return out;
  }

  Matrix attend(const Matrix& q, const Matrix& k, const Matrix& v) const {
    const std::size_t t = config_.context, d = config_.width, w = config_.head_width();
    Matrix out(t * d);
    for (std::size_t h = 0; h < config_.heads; ++h)
      for (std::size_t i = 0; i < t; ++i) {
        Matrix p(i + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          double dot = 0;
          for (std::size_t c = h * w; c < (h + 1) * w; ++c) dot += q[i * d + c] * k[j * d + c];
          sum += p[j] = std::exp(dot / std::sqrt(double(w)));
        }
        for (std::size_t j = 0; j <= i; ++j)
          for (std::size_t c = h * w; c < (h + 1) * w; ++c)
            out[i * d + c] += p[j] / sum * v[j * d + c];
      }
    return out;
  }

  Matrix body(std::size_t s) {
    const std::size_t t = config_.context, d = config_.width, h = config_.hidden;
    Matrix x(t * d);
    for (std::size_t i = 0; i < t; ++i)
      for (std::size_t j = 0; j < d; ++j)
        x[i * d + j] = weights_["embed.tokens.weight"][e_.tokens[s * t + i] * d + j] +
                       weights_["embed.positions.weight"][i * d + j];
    x = drop(x, s, d, config_.dropout, config_.layers * 8);
    const auto add = [&](const Matrix& branch, std::uint64_t site) {
      const Matrix kept = drop(branch, s, d, config_.dropout, site);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += kept[i];
    };
    for (std::size_t l = 0; l < config_.layers; ++l) {
      const std::string block = "blocks." + std::to_string(l) + ".";
      const Matrix n1 = norm(x, block + "norm1");
      const auto of = [&](const char* name) {
        return project(n1, d, s, block + "attention." + name, l * 8 + 2);
      };
      const Matrix attended = attend(of("q_proj"), of("k_proj"), of("v_proj"));
      add(project(attended, d, s, block + "attention.o_proj", l * 8 + 3), l * 8);
      const Matrix n2 = norm(x, block + "norm2");
      Matrix active = project(n2, d, s, block + "mlp.up_proj", l * 8 + 4);
      if (config_.mlp == TransformerConfig::Mlp::kSwiGlu) {
        const Matrix gate = project(n2, d, s, block + "mlp.gate_proj", l * 8 + 4);
        for (std::size_t i = 0; i < active.size(); ++i)
          active[i] *= gate[i] / (1 + std::exp(-gate[i]));
      } else {
        for (double& a : active) a *= 0.5 * std::erfc(-a / std::sqrt(2.0));
      }
      add(project(active, h, s, block + "mlp.down_proj", l * 8 + 5), l * 8 + 1);
    }
    return x;
  }

  TransformerConfig config_;
  const Example& e_;
  bool is_training_;
  std::map<std::string, Matrix> base_, weights_;
};

TEST(TransformerConfig, ReadsAndWritesItsDescription) {
  EXPECT_EQ(config_of("transformer").spec(),
            "transformer:layers=2,width=64,heads=4,context=64,vocabulary=256");
  const std::string all =
      "transformer:layers=1,width=8,heads=2,hidden=12,context=5,vocabulary=9,mlp=swiglu,norm=layer,"
      "tied=yes,dropout=0.125,lora=2,lora_alpha=4,lora_dropout=0.5,lora_targets=q_proj+down_proj";
  EXPECT_EQ(config_of(all).spec(), all);
  EXPECT_EQ(config_of(config_of(all).spec()).spec(), config_of(all).spec());
  EXPECT_EQ(config_of("transformer:lora=4,lora_targets=v_proj+q_proj").spec(),
            config_of("transformer:lora=4,lora_targets=q_proj+v_proj").spec());
}

TEST(TransformerConfig, RefusesWhatIsWrongAndSaysWhat) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"transformers", "unknown kind"},
      {"transformer:depth=3", "'depth=3' is not FIELD=VALUE with one of the fields layers,"},
      {"transformer:layers", "'layers' is not"},
      {"transformer:layers=0", "field layers is '0', expected a number from 1 to 128"},
      {"transformer:layers=2,layers=3", "field layers is there twice"},
      {"transformer:width=63", "width 63 is no multiple of heads 4"},
      {"transformer:context=1e3", "field context is '1e3'"},
      {"transformer:mlp=relu", "expected gelu or swiglu"},
      {"transformer:norm=batch", "expected rms or layer"},
      {"transformer:tied=maybe", "expected yes or no"},
      {"transformer:dropout=1", "expected at least 0 and below 1"},
      {"transformer:classes=4,tied=yes", "tied=yes with classes"},
      {"transformer:lora_alpha=8", "need lora=RANK"},
      {"transformer:lora=65", "lora 65 is above the width or hidden: 64"},
      {"transformer:lora=4,lora_targets=gate_proj", "there is with mlp=swiglu only"},
      {"transformer:lora=4,lora_targets=q_proj+q_proj", "field lora_targets is 'q_proj+q_proj'"},
      {"transformer:lora=4,lora_targets=x", "one or more of q_proj"},
      {"transformer:lora=4", "set a file with --base-weights"},
      {"transformer:layers=128,width=8192", "more than 2147483648 parameters"}};
  for (const auto& [spec, why] : cases) {
    const auto model = make_model(spec);
    ASSERT_FALSE(model.ok()) << spec;
    EXPECT_EQ(model.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(model.error().message(), HasSubstr(why)) << spec;
  }
}

TEST(TransformerConfig, NamesItsTensors) {
  std::vector<std::string> names;
  for (const auto& tensor : config_of("transformer:layers=1,norm=layer,mlp=swiglu").whole())
    names.push_back(tensor.name + centroid::to_string(tensor.shape));
  EXPECT_THAT(
      names,
      testing::ElementsAre(
          "embed.tokens.weight[256, 64]", "embed.positions.weight[64, 64]",
          "blocks.0.norm1.weight[64]", "blocks.0.norm1.bias[64]",
          "blocks.0.attention.q_proj.weight[64, 64]", "blocks.0.attention.k_proj.weight[64, 64]",
          "blocks.0.attention.v_proj.weight[64, 64]", "blocks.0.attention.o_proj.weight[64, 64]",
          "blocks.0.norm2.weight[64]", "blocks.0.norm2.bias[64]",
          "blocks.0.mlp.gate_proj.weight[256, 64]", "blocks.0.mlp.up_proj.weight[256, 64]",
          "blocks.0.mlp.down_proj.weight[64, 256]", "norm.weight[64]", "norm.bias[64]",
          "head.weight[256, 64]"));
  names.clear();
  for (const auto& tensor : config_of("transformer:layers=1,lora=4,lora_targets=up_proj").trained())
    names.push_back(tensor.name + centroid::to_string(tensor.shape));
  EXPECT_THAT(names, testing::ElementsAre("blocks.0.mlp.up_proj.lora_A.weight[4, 64]",
                                          "blocks.0.mlp.up_proj.lora_B.weight[256, 4]",
                                          "head.weight[256, 64]"));
}

const std::vector<std::string>& small_models() {
  static const std::string shape =
      "transformer:layers=2,width=6,heads=2,hidden=7,context=5,vocabulary=11";
  static const std::vector<std::string> all = {
      shape,
      shape + ",mlp=swiglu,norm=layer",
      shape + ",tied=yes,norm=layer",
      shape + ",classes=3,mlp=swiglu",
      shape + ",dropout=0.25,norm=layer,tied=yes",
      shape + ",lora=2,lora_alpha=3",
      shape +
          ",lora=3,lora_dropout=0.25,dropout=0.125,mlp=swiglu,norm=layer,lora_targets=q_proj+k_"
          "proj+v_proj+o_proj+gate_proj+up_proj+down_proj",
      shape + ",lora=1,tied=yes,lora_targets=k_proj+o_proj+down_proj",
      shape + ",lora=2,classes=4,lora_targets=o_proj+up_proj",
      "transformer:layers=1,width=1,heads=1,context=2,vocabulary=2,norm=layer"};
  return all;
}

// Bound: float32 against double; 2e-5 of the largest gradient.
TEST(Transformer, GradientsAreTheDerivativesOfTheMeanLoss) {
  for (const std::string& spec : small_models())
    for (const std::size_t samples : {1, 3}) {
      SCOPED_TRACE(spec + " batch " + std::to_string(samples));
      Transformer model = model_of(spec);
      const auto params = random_params(model, 3);
      const Example e = random_example(model, samples, 17 + samples);
      std::vector<float> gradient(params.size(), 99.0F);
      const StepResult result = model.step(e.batch(), params, gradient, kIgnore);
      const auto base = model.config().lora.rank > 0 ? base_of(model.config()) : nullptr;
      Reference reference(model, e, true,
                          base ? std::span<const float>(base->values) : std::span<const float>());
      std::vector<double> exact(params.begin(), params.end());
      const double mean = result.loss_sum / static_cast<double>(samples * model.targets());
      EXPECT_NEAR(mean, reference.mean_loss(exact), 1e-5);
      double largest = 0;
      for (const float g : gradient) largest = std::max(largest, std::abs(double{g}));
      std::vector<std::string> name_of;
      for (const auto& tensor : model.manifest())
        name_of.insert(name_of.end(), tensor.elements(), tensor.name);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        constexpr double kStep = 1e-5;
        const double middle = exact[i];
        exact[i] = middle + kStep;
        const double above = reference.mean_loss(exact);
        exact[i] = middle - kStep;
        const double below = reference.mean_loss(exact);
        exact[i] = middle;
        ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 2e-5 * (1 + largest))
            << i << " of " << name_of[i];
      }
    }
}

// A closed form: with zero weights in the head every class is equally likely, so the loss is ln V
// and the gradient of the head's rows is (1/V - is label) times the mean of what reaches them.
TEST(Transformer, ZeroHeadGivesTheLossOfAUniformGuess) {
  Transformer model = model_of("transformer:layers=1,width=8,heads=2,context=6,vocabulary=32");
  auto params = random_params(model, 3);
  std::fill(params.end() - 32 * 8, params.end(), 0.0F);
  Example e = random_example(model, 4, 5);
  std::ranges::fill(e.y, 7U);
  std::vector<float> gradient(params.size());
  const StepResult result = model.step(e.batch(), params, gradient, kIgnore);
  EXPECT_EQ(result.targets, 24U);
  EXPECT_NEAR(result.loss_sum / 24, std::log(32.0), 1e-6);
  const float* const head = gradient.data() + gradient.size() - 32 * 8;
  for (std::size_t j = 0; j < 8; ++j)
    for (std::size_t c = 0; c < 32; ++c) {
      if (c == 7) continue;
      EXPECT_NEAR(head[c * 8 + j], head[j], 1e-6);
      EXPECT_NEAR(head[7 * 8 + j], -31 * head[j], 1e-5);
    }
  EXPECT_THAT(std::vector<float>(gradient.begin(), gradient.end() - 32 * 8), Each(0.0F));
}

TEST(Transformer, AnnouncesEveryTensorOnceBackwardsAndFinal) {
  for (const std::string& spec : small_models()) {
    SCOPED_TRACE(spec);
    Transformer model = model_of(spec);
    const auto params = random_params(model, 1);
    const Example e = random_example(model, 3, 2);
    std::vector<float> gradient(params.size());
    model.step(e.batch(), params, gradient, kIgnore);
    const auto expected = gradient;
    std::fill(gradient.begin(), gradient.end(), 99.0F);
    std::size_t left = model.manifest().size(), end = gradient.size();
    model.step(e.batch(), params, gradient, [&](TensorId tensor) {
      ASSERT_EQ(tensor.value, --left);
      const std::size_t begin = end - model.manifest()[tensor.value].elements();
      for (std::size_t i = begin; i < end; ++i) ASSERT_EQ(gradient[i], expected[i]);
      end = begin;
    });
    EXPECT_EQ(end, 0U);
    left = model.manifest().size();
    const auto count = [&](TensorId tensor) { EXPECT_EQ(tensor.value, --left); };
    EXPECT_EQ(model.step({}, params, gradient, count).targets, 0U);
    EXPECT_THAT(gradient, Each(0.0F));
    EXPECT_EQ(left, 0U);
  }
}

TEST(Transformer, RepeatsBitForBitWhateverRanBefore) {
  for (const std::string& spec : small_models()) {
    SCOPED_TRACE(spec);
    Transformer model = model_of(spec);
    const auto params = random_params(model, 5);
    const Example e = random_example(model, 3, 6), longer = random_example(model, 9, 7);
    std::vector<float> first(params.size());
    std::vector<float> second(params.size(), std::numeric_limits<float>::quiet_NaN());
    const StepResult one = model.step(e.batch(), params, first, kIgnore);
    model.step(longer.batch(), params, second, kIgnore);
    model.evaluate(longer.batch(), params);
    const StepResult two = model.step(e.batch(), params, second, kIgnore);
    EXPECT_EQ(first, second);
    EXPECT_EQ(one.loss_sum, two.loss_sum);
    model.clone()->step(e.batch(), params, second, kIgnore);
    EXPECT_EQ(first, second);
  }
}

TEST(Transformer, EvaluationIsTheStepWithoutDropout) {
  for (const std::string& spec : small_models()) {
    SCOPED_TRACE(spec);
    Transformer model = model_of(spec);
    const auto params = random_params(model, 5);
    const Example e = random_example(model, 4, 6);
    std::vector<float> gradient(params.size());
    const StepResult trained = model.step(e.batch(), params, gradient, kIgnore);
    const StepResult evaluated = model.evaluate(e.batch(), params);
    EXPECT_EQ(evaluated.targets, trained.targets);
    if (spec.find("dropout") == std::string::npos) {
      EXPECT_EQ(trained.loss_sum, evaluated.loss_sum);
      EXPECT_EQ(trained.correct, evaluated.correct);
    } else {
      EXPECT_NE(trained.loss_sum, evaluated.loss_sum);
    }
  }
}

TEST(Transformer, DropoutFollowsTheSampleAndNotItsPlaceInTheBatch) {
  Transformer model =
      model_of("transformer:layers=1,width=8,heads=2,context=4,vocabulary=9,dropout=0.5");
  const auto params = random_params(model, 5);
  const Example e = random_example(model, 2, 6);
  Example second;
  second.tokens.assign(e.tokens.begin() + 4, e.tokens.end());
  second.y.assign(e.y.begin() + 4, e.y.end());
  second.ids = {e.ids[1]};
  Example first;
  first.tokens.assign(e.tokens.begin(), e.tokens.begin() + 4);
  first.y.assign(e.y.begin(), e.y.begin() + 4);
  first.ids = {e.ids[0]};
  std::vector<float> gradient(params.size());
  const double both = model.step(e.batch(), params, gradient, kIgnore).loss_sum;
  const double one = model.step(first.batch(), params, gradient, kIgnore).loss_sum;
  const double two = model.step(second.batch(), params, gradient, kIgnore).loss_sum;
  EXPECT_NEAR(both, one + two, 1e-5 * both);
  second.ids = {e.ids[0]};
  EXPECT_NE(model.step(second.batch(), params, gradient, kIgnore).loss_sum, two);
}

TEST(Transformer, TakesTheMemoryItSaysOnceAndNothingPerStep) {
  for (const std::string& spec : small_models()) {
    SCOPED_TRACE(spec);
    Transformer model = model_of(spec);
    const auto params = random_params(model, 5);
    const Example e = random_example(model, 4, 6);
    const Batch batch = e.batch();
    std::vector<float> gradient(params.size());
    const std::function<void(TensorId)> ignore = kIgnore;
    const auto taken_by = [&](const auto& what) {
      const std::size_t before = allocated_bytes();
      what();
      return allocated_bytes() - before;
    };
    const std::size_t first = taken_by([&] { model.step(batch, params, gradient, ignore); });
    const std::size_t more = first - model.work_bytes(4, true);
    EXPECT_GE(first, model.work_bytes(4, true));
    EXPECT_LE(more, 1000U);  // lists of places, dropout's keys
    EXPECT_EQ(taken_by([&] { model.step(batch, params, gradient, ignore); }), 0U);
    EXPECT_EQ(taken_by([&] { model.evaluate(batch, params); }), 0U);
  }
}

// The work space grows with the tokens, not with the square of the context.
TEST(Transformer, FourTimesTheContextTakesFourTimesTheMemory) {
  const auto bytes = [](const std::string& spec) { return model_of(spec).work_bytes(16, true); };
  EXPECT_LT(bytes("transformer:context=1024"), 41 * bytes("transformer:context=256") / 10);
}

// Logits are computed for some rows at a time: 320 of them here.
TEST(Transformer, ALargeBatchIsTheMeanOfItsSamples) {
  Transformer model = model_of("transformer:layers=1,width=8,heads=2,context=64,vocabulary=9");
  const auto params = random_params(model, 5);
  const Example e = random_example(model, 5, 6);
  std::vector<float> whole(params.size()), one(params.size());
  const StepResult all = model.step(e.batch(), params, whole, kIgnore);
  std::vector<double> mean(params.size());
  double loss = 0;
  for (std::size_t s = 0; s < 5; ++s) {
    Batch batch = e.batch();
    batch.samples = 1;
    batch.tokens = batch.tokens.subspan(s * 64, 64);
    batch.y = batch.y.subspan(s * 64, 64);
    batch.ids = batch.ids.subspan(s, 1);
    loss += model.step(batch, params, one, kIgnore).loss_sum;
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += double{one[i]} / 5;
  }
  EXPECT_NEAR(all.loss_sum, loss, 1e-5 * loss);
  EXPECT_EQ(all.targets, 319U);
  for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(whole[i], mean[i], 1e-5) << i;
}

TEST(Transformer, InitialLossIsThatOfAGuess) {
  for (const std::string spec :
       {"transformer", "transformer:tied=yes,mlp=swiglu,norm=layer", "transformer:classes=10"}) {
    Transformer model = model_of(spec);
    std::vector<float> params(elements_of(model.manifest())), again(params.size());
    model.initialize(1, params);
    model.initialize(1, again);
    EXPECT_EQ(params, again);
    model.initialize(2, again);
    EXPECT_NE(params, again);
    const Example e = random_example(model, 8, 3);
    const StepResult result = model.evaluate(e.batch(), params);
    EXPECT_NEAR(result.loss_sum / double(result.targets), std::log(double(model.classes())), 0.05);
  }
}

TEST(Lora, BeginsAtTheBaseAndMergesIntoIt) {
  const std::string shape =
      "transformer:layers=2,width=12,heads=3,hidden=20,context=6,vocabulary=15";
  const std::string lora =
      ",lora=3,lora_alpha=5,lora_targets=q_proj+v_proj+o_proj+up_proj+down_proj";
  const auto config = config_of(shape + lora);
  const auto base = base_of(config);
  Transformer adapted(config, base);
  Transformer whole(config_of(shape));
  const Example e = random_example(whole, 3, 6);
  std::vector<float> params(elements_of(adapted.manifest()));
  adapted.initialize(1, params);
  EXPECT_EQ(adapted.merged(params), base->values);
  EXPECT_EQ(adapted.evaluate(e.batch(), params).loss_sum,
            whole.evaluate(e.batch(), base->values).loss_sum);
  params = random_params(adapted, 9);
  const auto merged = adapted.merged(params);
  EXPECT_NE(merged, base->values);
  const double own = adapted.evaluate(e.batch(), params).loss_sum;
  EXPECT_NEAR(whole.evaluate(e.batch(), merged).loss_sum, own, 2e-6 * own);
  EXPECT_EQ(adapted.frozen_bytes(), base->values.size() * 4);
  EXPECT_EQ(whole.frozen_bytes(), 0U);
}

}  // namespace
}  // namespace centroid::worker::transformer_test
