#include "worker/node/layer_costs.h"

#include "tests/conformance/collective_fixture.h"
#include "worker/node/pipeline_replica.h"
#include "worker/parallel/stages.h"

namespace centroid::worker::layer_costs_test {
namespace {

using collective::Group;
using collective::testing::Carrier;
using collective::testing::Job;
using parallel::Range;
using ::testing::Each;
using ::testing::Eq;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Costs = std::vector<double>;

std::unique_ptr<Model> model_of(const std::string& spec) {
  return std::move(make_model(spec)).value();
}

PipelineOptions two_stages(Costs costs) {
  PipelineOptions options;
  options.mesh = std::move(parallel::Mesh::parse("pp=2", 2)).value();
  options.micro_batches = 2;
  options.layer_costs = std::move(costs);
  return options;
}

TEST(LayerCosts, DivideTheLayersIntoStages) {
  const auto model = model_of("mlp:64-64-64-64-10");
  const auto stages_of = [&](Costs costs) {
    return std::move(stage_layers(*model, two_stages(std::move(costs)))).value();
  };
  EXPECT_EQ(stages_of({}), (std::vector<Range>{{0, 2}, {2, 2}}));  // by elements
  EXPECT_EQ(stages_of({1, 1, 1, 5}), (std::vector<Range>{{0, 3}, {3, 1}}));
  EXPECT_EQ(stages_of({5, 1, 1, 1}), (std::vector<Range>{{0, 1}, {1, 3}}));
  const auto other = stage_layers(*model, two_stages({1, 1, 1}));
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("costs of 3 layers for 4"));
}

TEST(LayerCosts, MemoryIsThatOfTheStagesByCost) {
  const auto model = model_of("mlp:64-64-64-64-10");
  const auto parameters = [&](Costs costs) {
    return pipeline_memory(*model, two_stages(std::move(costs)), 0, 8)->planes.parameters;
  };
  EXPECT_EQ(parameters({1, 1, 1, 5}), 3 * (64 * 64 + 64) * sizeof(float));
  EXPECT_EQ(parameters({5, 1, 1, 1}), (64 * 64 + 64) * sizeof(float));
}

TEST(LayerCosts, EveryRankHasThoseOfRankZero) {
  Job job(Carrier::kInProcess, 3);
  job.run([](Group& group) {
    const double own = 1 + group.rank();
    const auto costs = agree_on_costs(group, 2, {own, 2 * own});
    ASSERT_TRUE(costs.ok()) << costs.error().to_string();
    EXPECT_EQ(*costs, (Costs{1, 2}));
    const auto none = agree_on_costs(group, 2, group.rank() == 0 ? Costs{} : Costs{1, 2});
    ASSERT_TRUE(none.ok()) << none.error().to_string();
    EXPECT_THAT(*none, IsEmpty());
  });
}

TEST(LayerCosts, LayersOfEqualShapesCostTheSame) {
  const auto model = model_of("transformer:layers=6,width=32,heads=2,context=16");
  const auto costs = measure_layers(*model, 3);
  ASSERT_TRUE(costs.ok()) << costs.error().to_string();
  ASSERT_EQ(costs->size(), 8u);
  EXPECT_THAT(sums_of(*costs), Each(Gt(0)));
  EXPECT_THAT(sums_of(std::span(*costs).subspan(1, 6)), Each(Eq((*costs)[1].sum())));
  EXPECT_EQ(costs->back().backward, 0);  // in the forward
  const auto stages = stage_layers(*model, two_stages(sums_of(*costs)));
  ASSERT_TRUE(stages.ok()) << stages.error().to_string();
}

TEST(LayerCosts, EveryModelInPassesIsMeasured) {
  for (const char* spec : {"mlp:12-9", "mlp:12-9-8-4,gelu", "mlp:9-9-9-9-9",
                           "transformer:layers=1,width=16,heads=4,context=8,vocabulary=11,"
                           "mlp=swiglu,norm=layer,dropout=0.1",
                           "transformer:layers=2,width=16,heads=2,context=8,classes=5"}) {
    SCOPED_TRACE(spec);
    const auto model = model_of(spec);
    for (const std::uint64_t samples : {1, 5}) {
      const auto costs = measure_layers(*model, samples);
      ASSERT_TRUE(costs.ok()) << costs.error().to_string();
      EXPECT_EQ(costs->size(), matrix_elements(*model)->size());
      EXPECT_THAT(sums_of(*costs), Each(Gt(0)));
    }
  }
  const auto refused = measure_layers(*model_of("mlp:12-9-4,norm=batch"), 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("norm=none"));
}

TEST(LayerCosts, MeasuringNeedsOneLayer) {
  const auto bytes = measuring_bytes(*model_of("mlp:64-64-4096-4096-4096-4096-4096-10"), 2);
  ASSERT_TRUE(bytes.ok()) << bytes.error().to_string();
  const std::uint64_t layer = (4096 * 4096 + 4096) * sizeof(float);
  EXPECT_GT(*bytes, 3 * layer);
  EXPECT_LT(*bytes, 4 * layer + kCacheBytes);
}

}  // namespace
}  // namespace centroid::worker::layer_costs_test
