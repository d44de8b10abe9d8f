#include "worker/node/sharded_replica.h"

#include <cmath>

#include "tests/conformance/collective_fixture.h"
#include "tests/support/whole_training.h"
#include "worker/node/sharded_memory.h"

namespace centroid::worker {
namespace {

using namespace std::chrono_literals;
using collective::Group;
using collective::testing::Carrier;
using collective::testing::Floats;
using collective::testing::Job;
using collective::testing::succeeds;
using parallel::ShardedOptions;
using parallel::ShardLayout;
using test::Samples;
using test::WholeTraining;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5;
constexpr const char* kTransformer =
    "transformer:layers=2,width=16,heads=2,context=8,vocabulary=11";

std::unique_ptr<Model> model_of(const std::string& spec) {
  return std::move(make_model(spec)).value();
}

ShardedOptions options_of(const char* sharding, std::uint32_t world, const char* rule, double rate,
                          std::uint64_t least_elements = 1) {
  ShardedOptions options;
  options.sharding = std::move(parallel::Sharding::parse(sharding, world)).value();
  options.optimizer.name = rule;
  options.optimizer.learning_rate = rate;
  options.least_elements = least_elements;
  options.timeout = 30s;
  return options;
}

/// The samples of a rank: `shares` of all, one after the other.
parallel::Range range_of(const std::vector<std::uint64_t>& shares, std::size_t index) {
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < index; ++i) begin += shares[i];
  return {begin, shares[index]};
}

struct Outcome {
  std::vector<double> losses;  ///< by step, of all ranks
  std::vector<Floats> values;  ///< by rank: all parameters
  std::vector<double> evaluated;
};

/// Train; `shares`: samples of each batch, `batches` of them on rank 0, then those of rank 1, ...
Outcome train(Carrier carrier, const std::string& spec, const ShardedOptions& options,
              const std::vector<std::uint64_t>& shares, std::size_t batches, std::uint64_t steps) {
  const auto model = model_of(spec);
  Job job(carrier, static_cast<std::uint32_t>(shares.size() / batches));
  const std::uint64_t all = range_of(shares, shares.size() - 1).end();
  Outcome out;
  out.values.resize(job.world());
  out.evaluated.resize(job.world());
  std::vector<std::vector<double>> losses(job.world(), std::vector<double>(steps));
  job.run([&](Group& group) {
    const std::uint32_t rank = group.rank();
    auto made = ShardedReplica::make(group, *model, kSeed + rank, options);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    for (std::uint64_t step = 0; step < steps; ++step) {
      const Samples samples(*model, all, step + 1);
      std::vector<Batch> own;
      for (std::size_t i = 0; i < batches; ++i) {
        const parallel::Range range = range_of(shares, rank * batches + i);
        own.push_back(samples.part(range.begin, range.count));
      }
      const auto done = (*made)->step(own, all);
      ASSERT_TRUE(done.ok()) << done.error().to_string();
      EXPECT_EQ(done->report.step, step + 1);
      losses[rank][step] = done->result.loss_sum;
    }
    const Samples samples(*model, all, 0);
    const auto evaluated = (*made)->evaluate(samples.part(0, all));
    ASSERT_TRUE(evaluated.ok()) << evaluated.error().to_string();
    out.evaluated[rank] = evaluated->loss_sum;
    Floats& values = out.values[rank];
    EXPECT_TRUE(succeeds((*made)->visit([&](TensorId, std::span<const float> of) -> Status {
      values.insert(values.end(), of.begin(), of.end());
      return {};
    })));
  });
  for (std::uint64_t step = 0; step < steps; ++step) {
    out.losses.push_back(0);
    for (const auto& of_rank : losses) out.losses.back() += of_rank[step];
  }
  return out;
}

void expect_as_whole(const Outcome& is, const std::string& spec, const OptimizerConfig& config,
                     std::uint64_t all) {
  const auto model = model_of(spec);
  WholeTraining whole(*model, kSeed, config);
  for (std::size_t step = 0; step < is.losses.size(); ++step) {
    const double should = whole.step(Samples(*model, all, step + 1).part(0, all)).loss_sum;
    ASSERT_NEAR(is.losses[step], should, 1e-5 * should) << "step " << step;
  }
  for (const Floats& values : is.values) {
    ASSERT_EQ(values.size(), whole.params().size());
    EXPECT_EQ(values, is.values.front());
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{values[i]} - whole.params()[i], 2);
      norm += std::pow(double{whole.params()[i]}, 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm));
  }
  const double should = whole.evaluate(Samples(*model, all, 0).part(0, all)).loss_sum;
  for (const double loss : is.evaluated) EXPECT_NEAR(loss, should, 1e-5 * should);
}

TEST(ShardedReplica, ModelsTrainAsInOneProcess) {
  const char* const models[] = {
      kTransformer, "transformer:layers=1,width=16,heads=2,context=8,vocabulary=11,tied=yes",
      "transformer:layers=2,width=16,heads=4,context=8,vocabulary=11,mlp=swiglu,norm=layer,"
      "dropout=0.1",
      "mlp:12-9-7-4", "mlp:12-9-4,gelu"};
  for (const char* spec : models)
    for (const char* sharding : {"full", "grad", "none", "hybrid:2"}) {
      SCOPED_TRACE(std::string(spec) + ", " + sharding);
      const ShardedOptions options = options_of(sharding, 4, "sgd", 0.1);
      const Outcome out = train(Carrier::kInProcess, spec, options, {3, 3, 3, 3}, 1, 10);
      expect_as_whole(out, spec, options.optimizer, 12);
    }
}

TEST(ShardedReplica, UnevenSharesBatchesAfterEachOtherAndRanksWithoutSamplesCount) {
  for (const char* sharding : {"full", "none"}) {
    SCOPED_TRACE(sharding);
    const ShardedOptions options = options_of(sharding, 3, "momentum", 0.05);
    const Outcome uneven = train(Carrier::kTcp, kTransformer, options, {5, 0, 2}, 1, 10);
    expect_as_whole(uneven, kTransformer, options.optimizer, 7);
    const Outcome batches = train(Carrier::kTcp, kTransformer, options, {1, 2, 0, 1, 0, 0}, 2, 10);
    expect_as_whole(batches, kTransformer, options.optimizer, 4);
  }
}

TEST(ShardedReplica, ClipsByTheNormOfTheWholeGradient) {
  ShardedOptions options = options_of("full", 2, "sgd", 0.5);
  options.optimizer.clip_norm = 0.05;
  const Outcome out = train(Carrier::kInProcess, kTransformer, options, {2, 2}, 1, 10);
  expect_as_whole(out, kTransformer, options.optimizer, 4);
}

TEST(ShardedReplica, TheSameBitsInEveryRun) {
  const ShardedOptions options = options_of("full", 3, "adam", 0.01);
  const Outcome one = train(Carrier::kTcp, kTransformer, options, {2, 2, 2}, 1, 5);
  const Outcome two = train(Carrier::kInProcess, kTransformer, options, {2, 2, 2}, 1, 5);
  EXPECT_EQ(one.values, two.values);
  EXPECT_EQ(one.losses, two.losses);
}

TEST(ShardedReplica, NeedsWithCodecsTheMemoryThatIsPlanned) {
  const auto model = model_of("mlp:64-64-64-64-64-64-64-64-64-64-64-64-64");
  constexpr std::uint64_t kUnit = 64 * 65 * sizeof(float), kWorld = 4;
  for (const char* sharding : {"full", "grad", "none", "hybrid:2"})
    for (const char* codec : {"bf16", "int8"}) {
      SCOPED_TRACE(std::string(sharding) + ", " + codec);
      Job job(Carrier::kInProcess, kWorld);
      job.run([&](Group& group) {
        ShardedOptions options = options_of(sharding, kWorld, "adam", 0.01);
        const auto plain = sharded_memory(*model, options, kWorld);
        options.codec = options.codec_down =
            std::move(parallel::PartCodec::parse("codec", codec)).value();
        auto made = ShardedReplica::make(group, *model, kSeed, options);
        ASSERT_TRUE(made.ok());
        const Samples samples(*model, 4, 1);
        const Batch batch = samples.part(group.rank(), 1);
        for (int step = 0; step < 3; ++step) ASSERT_TRUE((*made)->step({&batch, 1}, kWorld).ok());
        const parallel::ShardedMemory most = (*made)->most_memory();
        const auto need = sharded_memory(*model, options, kWorld);
        ASSERT_TRUE(need.ok() && plain.ok());
        EXPECT_EQ(most.total(), need->total());
        EXPECT_LE(need->total(), plain->total() + 5 * kUnit);
      });
    }
}

TEST(ShardedReplica, HasFewUnitsAtOnce) {
  const auto model = model_of("mlp:64-64-64-64-64-64-64-64-64-64-64-64-64");
  constexpr std::uint64_t kUnit = 64 * 65 * sizeof(float), kUnits = 12, kWorld = 4;
  Job job(Carrier::kInProcess, kWorld);
  job.run([&](Group& group) {
    auto made =
        ShardedReplica::make(group, *model, kSeed, options_of("full", kWorld, "adam", 0.01));
    ASSERT_TRUE(made.ok());
    const Samples samples(*model, 4, 1);
    const Batch batch = samples.part(group.rank(), 1);
    ASSERT_TRUE((*made)->step({&batch, 1}, kWorld).ok());
    const std::uint64_t of_one_step = (*made)->most_memory().total();
    for (int step = 0; step < 3; ++step) ASSERT_TRUE((*made)->step({&batch, 1}, kWorld).ok());
    const parallel::ShardedMemory most = (*made)->most_memory();
    EXPECT_EQ(most.total(), of_one_step);  // spare memory does not add to it
    const auto need = sharded_memory(*model, options_of("full", kWorld, "adam", 0.01), kWorld);
    ASSERT_TRUE(need.ok());
    EXPECT_EQ(most.total(), need->total());
    EXPECT_EQ(most.state, need->state);
    EXPECT_EQ(most.state, 2 * kUnits * kUnit / kWorld);
    // Two units are gathered, and the gradients of two are whole: one is computed while one is
    // reduced. The means of two are not here yet when that is so for the last time.
    EXPECT_LE(most.parameters, kUnits * kUnit / kWorld + 2 * kUnit);
    EXPECT_LE(most.total(), 4 * kUnits * kUnit / kWorld + 3 * kUnit);
  });
}

/// 65 x 64 elements on 3 ranks: parts of 1387, 1387 and 1386.
TEST(ShardedReplica, UnevenPartsOfUnitsFillTheirMemoryToo) {
  const auto model = model_of("mlp:64-64-64-64-64-64-64-64-64-64-64-64-64");
  constexpr std::uint64_t kPart = 1387 * sizeof(float), kUnits = 12, kWorld = 3;
  Job job(Carrier::kInProcess, kWorld);
  job.run([&](Group& group) {
    const ShardedOptions options = options_of("full", kWorld, "sgd", 0.01);
    auto made = ShardedReplica::make(group, *model, kSeed, options);
    ASSERT_TRUE(made.ok());
    const Samples samples(*model, 3, 1);
    const Batch batch = samples.part(group.rank(), 1);
    for (int step = 0; step < 2; ++step) ASSERT_TRUE((*made)->step({&batch, 1}, kWorld).ok());
    const auto need = sharded_memory(*model, options, kWorld);
    ASSERT_TRUE(need.ok());
    const std::uint64_t most = (*made)->most_memory().total();
    EXPECT_LE(most, need->total());
    EXPECT_GT(most + kUnits * kPart / 100, need->total());
    // Parameters, means, and at most four units beside them.
    EXPECT_LE(need->total(), 2 * kUnits * kPart + 4 * kWorld * kPart);
  });
}

TEST(ShardedReplica, RefusesAModelWithoutLayersAndAStepWithoutSamples) {
  Job job(Carrier::kInProcess, 2);
  job.run([&](Group& group) {
    const auto refused = ShardedReplica::make(group, *model_of("mlp:4-3-2,norm=batch"), kSeed,
                                              options_of("full", 2, "sgd", 0.1));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("norm=batch"));
    auto made = ShardedReplica::make(group, *model_of("mlp:4-3-2"), kSeed,
                                     options_of("full", 2, "sgd", 0.1));
    ASSERT_TRUE(made.ok());
    EXPECT_FALSE((*made)->step({}, 4).ok());
  });
}

TEST(ShardedReplica, ASilentRankEndsTheStepOnTheOthers) {
  Job job(Carrier::kTcp, 3);
  const auto model = model_of(kTransformer);
  job.run([&](Group& group) {
    ShardedOptions options = options_of("full", 3, "sgd", 0.1);
    options.timeout = 500ms;
    auto made = ShardedReplica::make(group, *model, kSeed, options);
    ASSERT_TRUE(made.ok());
    if (group.rank() == 1) return;
    const Samples samples(*model, 3, 1);
    const Batch batch = samples.part(group.rank(), 1);
    const auto failed = (*made)->step({&batch, 1}, 3);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.error().message(), HasSubstr("rank 1"));
    EXPECT_FALSE((*made)->evaluate(batch).ok());
  });
}

TEST(PlanOfPasses, FetchesAheadAndFreesOnceForUnitsOfSeveralLayers) {
  const auto model = model_of("mlp:4-4-4-4");
  std::vector<parallel::ParameterShape> shapes;
  const std::vector<std::uint32_t> layers = model->layered()->layers();
  for (std::size_t i = 0; i < layers.size(); ++i)
    shapes.push_back({model->manifest()[i].name, model->manifest()[i].elements(), layers[i]});
  const auto plan_of = [&](std::uint64_t least) {
    const auto layout = std::move(ShardLayout::make(shapes, 2, least)).value();
    return plan_passes(model->layered()->passes(true), layers, layout);
  };
  const auto each = plan_of(1);  // forward 0, 1, 2, backward 2, 1, 0
  ASSERT_EQ(each.size(), 6u);
  EXPECT_THAT(each[0].fetches, ElementsAre(1));
  EXPECT_THAT(each[0].releases, ElementsAre(0));
  EXPECT_THAT(each[2].fetches, ElementsAre());
  EXPECT_THAT(each[2].releases, ElementsAre());  // its backward follows
  EXPECT_THAT(each[3].fetches, ElementsAre(1));
  EXPECT_THAT(each[3].releases, ElementsAre(2));
  EXPECT_THAT(each[3].completes, ElementsAre(2));
  EXPECT_THAT(each[5].reads, ElementsAre());
  EXPECT_THAT(each[5].completes, ElementsAre(0));
  const auto pairs = plan_of(30);  // layers 0 and 1, layer 2
  EXPECT_THAT(pairs[0].releases, ElementsAre());
  EXPECT_THAT(pairs[1].fetches, ElementsAre(1));
  EXPECT_THAT(pairs[1].releases, ElementsAre(0));
  EXPECT_THAT(pairs[4].completes, ElementsAre());
  EXPECT_THAT(pairs[5].completes, ElementsAre(0));
}

}  // namespace
}  // namespace centroid::worker
