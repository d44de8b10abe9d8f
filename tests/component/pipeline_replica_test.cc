#include "worker/node/pipeline_replica.h"

#include <barrier>
#include <cmath>

#include "tests/conformance/collective_fixture.h"
#include "tests/support/whole_training.h"

namespace centroid::worker::pipeline_replica_test {
namespace {

using namespace std::chrono_literals;
using collective::Group;
using collective::testing::Carrier;
using collective::testing::Floats;
using collective::testing::Job;
using collective::testing::succeeds;
using parallel::Axis;
using parallel::Schedule;
using test::Samples;
using test::WholeTraining;
using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5, kSamples = 24;
constexpr std::uint64_t kSteps = 50;
constexpr const char* kTransformer =
    "transformer:layers=2,width=16,heads=2,context=8,vocabulary=11";
constexpr const char* kClassifier =
    "transformer:layers=2,width=16,heads=2,context=8,vocabulary=11,classes=5";

std::unique_ptr<Model> model_of(const std::string& spec) {
  return std::move(make_model(spec)).value();
}

PipelineOptions options_of(const char* mesh, std::uint32_t world, std::uint32_t micro_batches,
                           Schedule schedule = Schedule::kOneForwardOneBack,
                           const char* sharding = "none", const char* rule = "sgd") {
  PipelineOptions options;
  options.mesh = std::move(parallel::Mesh::parse(mesh, world)).value();
  options.schedule = schedule;
  options.micro_batches = micro_batches;
  const std::uint32_t ranks = options.mesh.size(Axis::kData);
  options.sharded.sharding = std::move(parallel::Sharding::parse(sharding, ranks)).value();
  options.sharded.optimizer.name = rule;
  options.sharded.optimizer.learning_rate = 0.1;
  options.sharded.least_elements = 1;
  options.sharded.timeout = 30s;
  return options;
}

struct Outcome {
  std::vector<double> losses;  ///< by step, of all ranks
  std::vector<double> norms;   ///< by step, with clip_norm: the same on all ranks
  Floats values;               ///< all parameters, on rank 0
  double evaluated = 0;
  std::vector<std::uint64_t> parameter_bytes, gradient_bytes;  ///< by rank
  std::vector<std::string> tensors;  ///< names and sizes that rank 0 visits
};

Outcome train(const std::string& spec, const PipelineOptions& options, std::uint64_t steps) {
  const auto model = model_of(spec);
  Job job(Carrier::kInProcess, options.mesh.world());
  Outcome out;
  out.parameter_bytes.resize(job.world());
  out.gradient_bytes.resize(job.world());
  std::vector<std::vector<double>> losses(job.world(), std::vector<double>(steps));
  std::vector<std::vector<double>> norms(job.world());
  std::vector<double> evaluated(job.world());
  job.run([&](Group& group) {
    const std::uint32_t rank = group.rank();
    auto made = PipelineReplica::make(group, *model, kSeed, options);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    PipelineReplica& replica = **made;
    const parallel::Range own =
        parallel::shard_of(kSamples, replica.data_world(), replica.data_rank());
    for (std::uint64_t step = 0; step < steps; ++step) {
      const Samples samples(*model, kSamples, step + 1);
      const Batch batch = samples.part(own.begin, own.count);
      const auto done = replica.step({&batch, 1}, kSamples);
      ASSERT_TRUE(done.ok()) << done.error().to_string();
      losses[rank][step] = done->result.loss_sum;
      if (done->report.gradient_norm) norms[rank].push_back(*done->report.gradient_norm);
    }
    const Samples samples(*model, kSamples, 0);
    const auto result = replica.evaluate(samples.part(own.begin, own.count));
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    evaluated[rank] = result->loss_sum;
    out.parameter_bytes[rank] = replica.most_memory().parameters;
    out.gradient_bytes[rank] = replica.most_memory().gradients;
    EXPECT_TRUE(succeeds(replica.visit([&](TensorId tensor, std::span<const float> of) -> Status {
      if (rank != 0) return {};
      const TensorInfo& info = replica.model().manifest()[tensor.value];
      EXPECT_EQ(of.size(), info.elements());
      out.values.insert(out.values.end(), of.begin(), of.end());
      out.tensors.push_back(info.name);
      return {};
    })));
  });
  for (std::uint64_t step = 0; step < steps; ++step) {
    out.losses.push_back(0);
    for (const auto& of_rank : losses) out.losses.back() += of_rank[step];
  }
  for (const double loss : evaluated) out.evaluated += loss;
  out.norms = norms[0];
  for (const auto& of_rank : norms) EXPECT_EQ(of_rank, out.norms);
  return out;
}

/// `most`: relative difference of losses and parameters.
void expect_as_whole(const Outcome& is, const std::string& spec, const PipelineOptions& options,
                     double most = 1e-5) {
  const auto model = model_of(spec);
  WholeTraining whole(*model, kSeed, options.sharded.optimizer);
  for (std::size_t step = 0; step < is.losses.size(); ++step) {
    const double should =
        whole.step(Samples(*model, kSamples, step + 1).part(0, kSamples)).loss_sum;
    ASSERT_NEAR(is.losses[step], should, most * should) << "step " << step;
    if (is.norms.empty()) continue;
    const double norm = std::sqrt(sum_of_squares(whole.gradient()));  // after clipping
    ASSERT_NEAR(std::min(is.norms[step], options.sharded.optimizer.clip_norm), norm, most * norm);
  }
  ASSERT_EQ(is.values.size(), whole.params().size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < is.values.size(); ++i) {
    difference += std::pow(double{is.values[i]} - whole.params()[i], 2);
    norm += std::pow(double{whole.params()[i]}, 2);
  }
  EXPECT_LE(std::sqrt(difference), most * std::sqrt(norm));
  const double should = whole.evaluate(Samples(*model, kSamples, 0).part(0, kSamples)).loss_sum;
  EXPECT_NEAR(is.evaluated, should, most * should);
}

TEST(PipelineReplica, StagesTrainAsOneProcess) {
  const char* const models[] = {
      kTransformer,
      "transformer:layers=2,width=16,heads=4,context=8,vocabulary=11,mlp=swiglu,norm=layer,"
      "dropout=0.1",
      kClassifier, "mlp:12-9-7-4", "mlp:12-9-8-4,gelu"};
  const std::pair<const char*, std::uint32_t> meshes[] = {
      {"pp=1", 1}, {"pp=2", 2}, {"pp=3", 3}, {"dp=2,pp=2", 4}};
  for (const char* spec : models)
    for (const auto& [mesh, world] : meshes)
      for (const Schedule schedule : {Schedule::kGPipe, Schedule::kOneForwardOneBack}) {
        SCOPED_TRACE(std::string(spec) + ", " + mesh + ", " + std::string(to_string(schedule)));
        const PipelineOptions options = options_of(mesh, world, 4, schedule);
        expect_as_whole(train(spec, options, 8), spec, options);
      }
}

/// Of a model that amplifies rounding less than the small ones above, at a small rate.
TEST(PipelineReplica, LossesAreThoseOfOneProcessAfterFiftySteps) {
  const char* const spec =
      "transformer:layers=4,width=64,heads=4,context=32,vocabulary=64,mlp=swiglu";
  PipelineOptions options = options_of("dp=2,pp=2", 4, 4);
  options.sharded.optimizer.learning_rate = 0.02;
  expect_as_whole(train(spec, options, kSteps), spec, options);
}

TEST(PipelineReplica, AStageIsDividedAmongItsDataParallelRanks) {
  for (const char* sharding : {"none", "grad", "full", "hybrid:2"})
    for (const char* rule : {"sgd", "adam"}) {
      SCOPED_TRACE(std::string(sharding) + ", " + rule);
      PipelineOptions options =
          options_of("dp=2,pp=2", 4, 3, Schedule::kOneForwardOneBack, sharding, rule);
      if (options.sharded.optimizer.name == "adam") options.sharded.optimizer.learning_rate = 0.003;
      expect_as_whole(train(kTransformer, options, 10), kTransformer, options);
    }
}

TEST(PipelineReplica, CopiesOfShardsChangeNothingAndThePlanCountsThem) {
  const std::string spec = "mlp:16-16-16-16-16";
  for (const auto& [mesh, world] : {std::pair{"dp=2,pp=2", 4u}, {"dp=4,pp=2", 8u}})
    for (const char* sharding : {"grad", "full"}) {
      SCOPED_TRACE(std::string(mesh) + ", " + sharding);
      PipelineOptions options = options_of(mesh, world, 4, Schedule::kGPipe, sharding, "adam");
      options.sharded.optimizer.learning_rate = 0.003;
      const Outcome without = train(spec, options, 10);
      options.sharded.replicas = 1;
      const Outcome with = train(spec, options, 10);
      EXPECT_EQ(with.values, without.values);
      EXPECT_EQ(with.losses, without.losses);
      const auto need = pipeline_memory(*model_of(spec), options, 0, kSamples);
      ASSERT_TRUE(need.ok()) << need.error().to_string();
      EXPECT_EQ(need->planes.parameters, with.parameter_bytes[0]);
      EXPECT_GE(need->planes.gradients, with.gradient_bytes[0]);
      EXPECT_GT(with.parameter_bytes[0], without.parameter_bytes[0]);
    }
}

TEST(PipelineReplica, GradientsAreClippedByTheNormOfAllStages) {
  const std::pair<const char*, std::uint32_t> meshes[] = {
      {"pp=2", 2}, {"pp=3", 3}, {"dp=2,pp=2", 4}, {"dp=4,pp=2", 8}};
  for (const auto& [mesh, world] : meshes)
    for (const char* sharding : {"none", "grad", "full", "hybrid:2"})
      for (const double bound : {0.05, 1e6}) {
        PipelineOptions options = options_of(mesh, world, 4);
        const std::uint32_t ranks = options.mesh.size(Axis::kData);
        if (ranks == 1 && std::string(sharding) != "none") continue;
        SCOPED_TRACE(std::string(mesh) + ", " + sharding + ", " + std::to_string(bound));
        options.sharded.sharding = std::move(parallel::Sharding::parse(sharding, ranks)).value();
        options.sharded.optimizer.clip_norm = bound;
        const Outcome out = train(kTransformer, options, 10);
        ASSERT_EQ(out.norms.size(), 10u);
        EXPECT_GT(*std::ranges::min_element(out.norms), 0.05);  // that bound clips every step
        expect_as_whole(out, kTransformer, options);
      }
}

TEST(PipelineReplica, MoreMicroBatchesThanSamplesTrainAsOneProcess) {
  const PipelineOptions options = options_of("dp=2,pp=2", 4, 9);
  expect_as_whole(train(kTransformer, options, 10), kTransformer, options);
}

TEST(PipelineReplica, StagesHaveTheBitsOfOneStageWithTheSameMicroBatches) {
  for (const char* spec : {kTransformer, kClassifier, "mlp:12-9-8-4,gelu"}) {
    const Outcome one = train(spec, options_of("pp=1", 1, 4), kSteps);
    for (const std::uint32_t stages : {2U, 3U}) {
      SCOPED_TRACE(std::string(spec) + ", " + std::to_string(stages));
      const Outcome is =
          train(spec, options_of(("pp=" + std::to_string(stages)).c_str(), stages, 4), kSteps);
      EXPECT_EQ(is.losses, one.losses);
      EXPECT_EQ(is.values, one.values);
    }
  }
}

TEST(PipelineReplica, OtherStagesHaveTheSameBits) {
  PipelineOptions options = options_of("dp=2,pp=2", 4, 4);
  const Outcome by_elements = train(kTransformer, options, 10);
  const std::pair<std::vector<double>, std::uint64_t> cases[] = {{{9, 1, 1, 1}, 1},
                                                                 {{1, 1, 1, 9}, 3}};
  for (const auto& [costs, layers] : cases) {
    options.layer_costs = costs;
    const auto stages = stage_layers(*model_of(kTransformer), options);
    ASSERT_TRUE(stages.ok()) << stages.error().to_string();
    EXPECT_EQ(stages->front(), (parallel::Range{0, layers}));
    const Outcome is = train(kTransformer, options, 10);
    EXPECT_EQ(is.losses, by_elements.losses);
    EXPECT_EQ(is.values, by_elements.values);
  }
}

TEST(PipelineReplica, EveryRunHasTheSameBits) {
  const PipelineOptions options = options_of("dp=2,pp=2", 4, 4);
  const Outcome one = train(kTransformer, options, 10), other = train(kTransformer, options, 10);
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.values, other.values);
}

TEST(PipelineReplica, ARankHasOnlyItsStage) {
  const std::string spec = "mlp:16-16-16-16-16";
  const PipelineOptions options = options_of("pp=4", 4, 4);
  const Outcome out = train(spec, options, 1);
  for (const std::uint64_t bytes : out.parameter_bytes)
    EXPECT_EQ(bytes, (16 * 16 + 16) * sizeof(float));
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto need = pipeline_memory(*model_of(spec), options, rank, 16);
    ASSERT_TRUE(need.ok()) << need.error().to_string();
    EXPECT_EQ(need->planes.parameters, out.parameter_bytes[rank]);
    EXPECT_EQ(need->planes.gradients, out.gradient_bytes[rank]);
  }
  const auto first = pipeline_memory(*model_of(spec), options, 0, 16);
  const auto last = pipeline_memory(*model_of(spec), options, 3, 16);
  EXPECT_GT(first->activations, last->activations);  // four micro-batches in flight, not one
}

TEST(PipelineReplica, BadInputIsRefusedBeforeMemoryIsTaken) {
  const auto refused = [](const char* spec, const PipelineOptions& options) {
    const auto need = pipeline_memory(*model_of(spec), options, 0, 16);
    return need.ok() ? std::string("not refused") : need.error().to_string();
  };
  EXPECT_THAT(refused("mlp:12-9-4", options_of("pp=3", 3, 4)), HasSubstr("3 stages for 2 layers"));
  EXPECT_THAT(refused(kTransformer, options_of("pp=3", 3, 2)),
              HasSubstr("2 micro-batches for 3 stages"));
  EXPECT_THAT(refused(kTransformer, options_of("tp=4", 4, 1)),
              HasSubstr("heads 2 is no multiple of 4"));
  EXPECT_THAT(refused(kTransformer, options_of("dp=3,tp=2", 6, 1)),
              HasSubstr("vocabulary 11 is no multiple of tp=2, which dp above 2 needs"));
  EXPECT_THAT(refused("mlp:12-9-4", options_of("tp=2", 2, 1)), HasSubstr("only transformers"));
  EXPECT_THAT(refused("mlp:12-9-4,norm=batch", options_of("pp=2", 2, 4)), HasSubstr("norm"));
  EXPECT_THAT(refused("transformer:layers=1,width=16,heads=2,context=8,vocabulary=11,tied=yes",
                      options_of("pp=2", 2, 4)),
              HasSubstr("tied"));
}

constexpr const char* kDivided =
    "transformer:layers=3,width=32,heads=4,hidden=48,context=8,vocabulary=13";
const std::pair<const char*, std::uint32_t> kTensorMeshes[] = {
    {"tp=2", 2}, {"tp=4", 4}, {"dp=2,tp=2", 4}, {"pp=2,tp=2", 4}, {"dp=2,pp=2,tp=2", 8}};

TEST(TensorParallel, PartsOfTensorsTrainAsOneProcess) {
  for (const std::string more : {"", ",mlp=swiglu,norm=layer,dropout=0.1", ",classes=5"})
    for (const auto& [mesh, world] : kTensorMeshes) {
      const std::string spec = kDivided + more;
      SCOPED_TRACE(spec + ", " + mesh);
      const PipelineOptions options = options_of(mesh, world, 2);
      const Outcome is = train(spec, options, 8);
      expect_as_whole(is, spec, options);
      const auto model = model_of(spec);
      std::vector<std::string> names;
      for (const TensorInfo& tensor : model->manifest()) names.push_back(tensor.name);
      EXPECT_EQ(is.tensors, names);
    }
}

TEST(TensorParallel, LossesAreThoseOfOneProcessAfterFiftySteps) {
  const char* const spec =
      "transformer:layers=2,width=64,heads=4,context=16,vocabulary=65,mlp=swiglu";
  for (const auto& [mesh, world] : kTensorMeshes)
    for (const bool is_adam : {false, true}) {
      if (is_adam && world != 8) continue;
      SCOPED_TRACE(std::string(mesh) + (is_adam ? ", adam" : ", sgd"));
      PipelineOptions options = options_of(mesh, world, 2, Schedule::kOneForwardOneBack, "full",
                                           is_adam ? "adam" : "sgd");
      options.sharded.optimizer.learning_rate = is_adam ? 0.001 : 0.02;
      expect_as_whole(train(spec, options, kSteps), spec, options, is_adam ? 1e-3 : 1e-5);
    }
}

TEST(TensorParallel, APartIsDividedAmongItsDataParallelRanks) {
  for (const char* sharding : {"none", "grad", "full", "hybrid:2"}) {
    SCOPED_TRACE(sharding);
    const PipelineOptions options =
        options_of("dp=2,tp=2", 4, 3, Schedule::kOneForwardOneBack, sharding);
    expect_as_whole(train(kDivided, options, 10), kDivided, options);
  }
}

TEST(TensorParallel, WholeTensorsCountOnceInTheNorm) {
  for (const auto& [mesh, world] : kTensorMeshes)
    for (const char* sharding : {"none", "grad", "full"})
      for (const double bound : {0.05, 1e6}) {
        SCOPED_TRACE(std::string(mesh) + ", " + sharding + ", " + std::to_string(bound));
        PipelineOptions options =
            options_of(mesh, world, 2, Schedule::kOneForwardOneBack, sharding);
        options.sharded.optimizer.clip_norm = bound;
        const Outcome out = train(kDivided, options, 6);
        ASSERT_EQ(out.norms.size(), 6u);
        EXPECT_GT(*std::ranges::min_element(out.norms), 0.05);
        expect_as_whole(out, kDivided, options);
      }
}

TEST(TensorParallel, EveryRunHasTheSameBits) {
  const PipelineOptions options =
      options_of("dp=2,pp=2,tp=2", 8, 2, Schedule::kOneForwardOneBack, "full", "adam");
  const Outcome one = train(kDivided, options, 10), other = train(kDivided, options, 10);
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.values, other.values);
}

TEST(TensorParallel, ARankHasItsPartAndThePlanCountsIt) {
  const char* const spec = "transformer:layers=2,width=64,heads=4,context=16,vocabulary=64";
  const PipelineOptions whole = options_of("tp=1", 1, 1), options = options_of("tp=4", 4, 1);
  const Outcome out = train(spec, options, 1);
  const auto of_one = pipeline_memory(*model_of(spec), whole, 0, 16);
  ASSERT_TRUE(of_one.ok());
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto need = pipeline_memory(*model_of(spec), options, rank, 16);
    ASSERT_TRUE(need.ok()) << need.error().to_string();
    EXPECT_EQ(need->planes.parameters, out.parameter_bytes[rank]);
    EXPECT_EQ(need->planes.gradients, out.gradient_bytes[rank]);
    EXPECT_LT(need->planes.parameters, 0.3 * static_cast<double>(of_one->planes.parameters));
    EXPECT_LT(need->activations, of_one->activations);
  }
}

TEST(TensorParallel, ALostRankIsNamedOnAll) {
  const auto model = model_of(kDivided);
  Job job(Carrier::kTcp, 4);
  const PipelineOptions options = options_of("dp=2,tp=2", 4, 2);
  std::barrier first_step_is_done(4);  // the failure of the next one ends all calls
  job.run([&](Group& group) {
    auto made = PipelineReplica::make(group, *model, kSeed, options);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    PipelineReplica& replica = **made;
    const parallel::Range own =
        parallel::shard_of(kSamples, replica.data_world(), replica.data_rank());
    const Samples samples(*model, kSamples, 1);
    const Batch batch = samples.part(own.begin, own.count);
    const bool has_stepped = replica.step({&batch, 1}, kSamples).ok();
    first_step_is_done.arrive_and_wait();
    ASSERT_TRUE(has_stepped);
    const std::uint32_t rank = group.rank();
    if (rank == 3) {
      made->reset();
      return job.leave(3);
    }
    const auto done = replica.step({&batch, 1}, kSamples);
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().to_string(), HasSubstr("rank 3"));
    ASSERT_TRUE(group.culprit());
    EXPECT_EQ(*group.culprit(), 3U);
    made->reset();  // as a program that exits
    job.leave(rank);
  });
}

TEST(PipelineReplica, ALostStageIsNamed) {
  const auto model = model_of(kTransformer);
  Job job(Carrier::kTcp, 3);
  const PipelineOptions options = options_of("pp=3", 3, 4);
  std::barrier first_step_is_done(3);  // the failure of the next one ends all calls
  job.run([&](Group& group) {
    auto made = PipelineReplica::make(group, *model, kSeed, options);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    const Samples samples(*model, kSamples, 1);
    const Batch batch = samples.part(0, kSamples);
    const bool has_stepped = (*made)->step({&batch, 1}, kSamples).ok();
    first_step_is_done.arrive_and_wait();
    ASSERT_TRUE(has_stepped);
    if (group.rank() == 1) {
      made->reset();
      return job.leave(1);
    }
    const auto done = (*made)->step({&batch, 1}, kSamples);
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().to_string(), HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace centroid::worker::pipeline_replica_test
