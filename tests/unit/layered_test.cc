#include "worker/model/layered.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/whole_training.h"
#include "worker/model/backend.h"
#include "worker/model/model.h"

namespace centroid::worker {
namespace {

using testing::Each;
using testing::Ge;
using testing::IsNull;
using testing::SizeIs;
using Floats = std::vector<float>;

class Layers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Models, Layers,
    testing::Values("mlp:12-9-7-4", "mlp:12-9-7-4,gelu", "mlp:5-3",
                    "transformer:layers=2,width=16,heads=2,context=8,vocabulary=11",
                    "transformer:layers=1,width=16,heads=2,context=8,vocabulary=11,tied=yes",
                    "transformer:layers=3,width=16,heads=4,context=8,vocabulary=11,mlp=swiglu,"
                    "norm=layer,dropout=0.2",
                    "transformer:width=16,context=8,vocabulary=11,classes=3"));

/// Each layer of a model in memory of its own.
struct Parts {
  std::vector<std::uint32_t> layers;
  std::map<std::uint32_t, Floats> params, gradients;
  std::vector<std::size_t> within;  ///< by tensor, in its layer

  Parts(const Model& model, const Layered& layered) : layers(layered.layers()) {
    for (std::size_t t = 0; t < layers.size(); ++t) {
      Floats& of = params[layers[t]];
      within.push_back(of.size());
      of.resize(of.size() + model.manifest()[t].elements());
      layered.initialize_tensor(5, TensorId(static_cast<std::uint32_t>(t)),
                                std::span(of).subspan(within.back()));
    }
    for (const auto& [layer, of] : params) gradients[layer] = Floats(of.size(), -7);
  }
  /// Only these layers are in memory.
  void place(const Pass& pass, TensorPlaces& places) {
    const auto has = [](const std::vector<std::uint32_t>& in, std::uint32_t layer) {
      return std::ranges::find(in, layer) != in.end();
    };
    places.params.assign(layers.size(), nullptr);
    places.gradients.assign(layers.size(), nullptr);
    for (std::size_t t = 0; t < layers.size(); ++t) {
      const std::uint32_t layer = layers[t];
      if (has(pass.reads, layer)) places.params[t] = params[layer].data() + within[t];
      if (has(pass.writes, layer)) places.gradients[t] = gradients[layer].data() + within[t];
    }
  }
  static Floats flat(const std::map<std::uint32_t, Floats>& of) {
    Floats out;
    for (const auto& [layer, values] : of) out.insert(out.end(), values.begin(), values.end());
    return out;
  }
};

TEST_P(Layers, PassesNeedOnlyTheirLayersAndGiveTheBitsOfAWholeStep) {
  const auto model = std::move(make_model(GetParam())).value();
  Layered* const layered = model->layered();
  ASSERT_NE(layered, nullptr);
  Parts parts(*model, *layered);
  const Floats params = Parts::flat(parts.params);
  Floats whole(params.size()), gradient(params.size());
  model->initialize(5, whole);
  EXPECT_EQ(params, whole);

  const test::Samples samples(*model, 6, 1);
  const Batch batch = samples.part(0, 6);
  const StepResult should = model->step(batch, whole, gradient, [](TensorId) {});
  TensorPlaces places;
  const std::vector<Pass> passes = layered->passes(true);
  layered->begin(batch, places, true);
  for (std::size_t pass = 0; pass < passes.size(); ++pass) {
    parts.place(passes[pass], places);
    layered->run(pass);
  }
  const StepResult is = model->backend().result();
  EXPECT_EQ(is.loss_sum, should.loss_sum);
  EXPECT_EQ(is.correct, should.correct);
  EXPECT_EQ(Parts::flat(parts.gradients), gradient);
}

TEST_P(Layers, AnEvaluationReadsOneLayerAfterTheOther) {
  const auto model = std::move(make_model(GetParam())).value();
  Layered* const layered = model->layered();
  Parts parts(*model, *layered);
  const test::Samples samples(*model, 6, 1);
  const Batch batch = samples.part(0, 6);
  const StepResult should = model->evaluate(batch, Parts::flat(parts.params));
  TensorPlaces places;
  const std::vector<Pass> passes = layered->passes(false);
  layered->begin(batch, places, false);
  for (std::size_t pass = 0; pass < passes.size(); ++pass) {
    parts.place(passes[pass], places);
    EXPECT_THAT(places.gradients, Each(IsNull()));
    layered->run(pass);
  }
  EXPECT_EQ(model->backend().result().loss_sum, should.loss_sum);
}

TEST_P(Layers, LayersAscendAndEachIsWritten) {
  const auto model = std::move(make_model(GetParam())).value();
  const std::vector<std::uint32_t> layers = model->layered()->layers();
  EXPECT_THAT(layers, SizeIs(model->manifest().size()));
  EXPECT_TRUE(std::ranges::is_sorted(layers));
  std::vector<int> writes(layers.back() + 1);
  for (const Pass& pass : model->layered()->passes(true))
    for (const std::uint32_t layer : pass.writes) ++writes[layer];
  EXPECT_THAT(writes, Each(Ge(1)));
}

TEST(Layers, ANormalisationOfBatchesHasNoPasses) {
  EXPECT_EQ(std::move(make_model("mlp:4-3-2,norm=batch")).value()->layered(), nullptr);
}

}  // namespace
}  // namespace centroid::worker
