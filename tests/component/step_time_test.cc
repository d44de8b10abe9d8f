#include "worker/node/step_time.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace centroid::worker {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kSamples = 4, kElements = 100 * 101;  // of a layer
constexpr double kForward = 2, kBackward = 4;

std::unique_ptr<Model> three_layers() {
  return std::move(make_model("mlp:100-100-100-100")).value();
}

Speeds speeds_of(std::size_t layers, double bandwidth) {
  Speeds out;
  out.layers.assign(layers, {kForward, kBackward, 0});
  out.samples = kSamples;
  out.bandwidth = bandwidth;
  return out;
}

/// A second for the bytes of a layer.
Speeds a_second_for_a_layer(double seconds = 1) {
  return speeds_of(3, sizeof(float) * kElements / seconds);
}

parallel::ShardedOptions options_of(const char* sharding, std::uint32_t world) {
  parallel::ShardedOptions options;
  options.sharding = std::move(parallel::Sharding::parse(sharding, world)).value();
  options.least_elements = 1;
  return options;
}

double time_of(const char* sharding, std::uint32_t world, const Speeds& speeds,
               std::uint32_t replicas = 0, std::uint64_t samples = kSamples) {
  parallel::ShardedOptions options = options_of(sharding, world);
  options.replicas = replicas;
  const auto time = step_time(*three_layers(), options, world, samples, speeds);
  EXPECT_TRUE(time.ok()) << time.error().to_string();
  return time->all;
}

constexpr double kPasses = 3 * (kForward + kBackward);

TEST(StepTime, WithoutANetworkIsTheTimeOfThePasses) {
  for (const char* sharding : {"full", "grad", "none", "hybrid:2"})
    EXPECT_DOUBLE_EQ(time_of(sharding, 4, speeds_of(3, kEndless)), kPasses) << sharding;
  EXPECT_DOUBLE_EQ(time_of("full", 4, speeds_of(3, kEndless), 0, 3 * kSamples), 3 * kPasses);
}

/// With 2 ranks half of a layer passes the link, in half a second.
TEST(StepTime, MessagesPassDuringPasses) {
  const Speeds speeds = a_second_for_a_layer();
  // The first layer comes before its forward, its gradient goes after its backward.
  EXPECT_DOUBLE_EQ(time_of("full", 2, speeds), 0.5 + kPasses + 0.5);
  // Updated parameters come at the end.
  EXPECT_DOUBLE_EQ(time_of("grad", 2, speeds), kPasses + 0.5 + 3 * 0.5);
  EXPECT_DOUBLE_EQ(time_of("none", 2, speeds), kPasses + 1);
  // The halves of the first two layers are also averaged with those of the other group.
  EXPECT_DOUBLE_EQ(time_of("hybrid:2", 4, speeds), 0.5 + kPasses + 0.5 + 2 * 0.5);
}

/// Nothing is computed meanwhile, so all bytes are waited for.
TEST(StepTime, OfASlowNetworkIsThatOfItsBytes) {
  Speeds speeds = a_second_for_a_layer(100);
  for (LayerCost& cost : speeds.layers) cost = {};
  EXPECT_DOUBLE_EQ(time_of("full", 2, speeds), 50 * (3 + 1 + 3));  // the second one comes twice
  EXPECT_DOUBLE_EQ(time_of("grad", 2, speeds), 50 * (3 + 3));
  EXPECT_DOUBLE_EQ(time_of("none", 2, speeds), 100 * 3);
  EXPECT_DOUBLE_EQ(time_of("none", 4, speeds), 150 * 3);
  EXPECT_DOUBLE_EQ(time_of("hybrid:2", 4, speeds), 50 * (3 + 1 + 3 + 3));
  EXPECT_DOUBLE_EQ(time_of("full", 4, speeds, 1), 75 * (3 + 1 + 3) + 25 * 3);  // with copies
}

TEST(StepTime, CodecsHalveTheBytes) {
  Speeds speeds = a_second_for_a_layer(100);
  for (LayerCost& cost : speeds.layers) cost = {};
  parallel::ShardedOptions options = options_of("full", 2);
  options.codec = std::move(parallel::PartCodec::parse("codec", "bf16")).value();
  const auto reduced = step_time(*three_layers(), options, 2, kSamples, speeds);
  options.codec_down = options.codec;
  const auto both = step_time(*three_layers(), options, 2, kSamples, speeds);
  ASSERT_TRUE(reduced.ok() && both.ok());
  EXPECT_DOUBLE_EQ(reduced->all, 50 * (3 + 1) + 25 * 3);
  EXPECT_DOUBLE_EQ(both->all, 25 * (3 + 1 + 3));
}

TEST(StepTime, CountsTheOptimizerAndMemory) {
  Speeds speeds = speeds_of(3, kEndless);
  speeds.update = 1.0 / kElements;  // a second for a layer
  EXPECT_DOUBLE_EQ(time_of("none", 2, speeds), kPasses + 3);
  EXPECT_DOUBLE_EQ(time_of("full", 2, speeds), kPasses + 1.5);
  EXPECT_DOUBLE_EQ(time_of("full", 4, speeds, 1), kPasses + 1.5);  // its own shard and a copy
  speeds.update = 0;
  // Own halves are copied to their units, two of which come again, and out of the means.
  speeds.copy = 1.0 / kElements;
  EXPECT_DOUBLE_EQ(time_of("none", 2, speeds), kPasses);
  EXPECT_DOUBLE_EQ(time_of("full", 2, speeds), kPasses + 4 * 0.5 + 3 * 0.5);
}

TEST(StepTime, TransfersTakeTheProcessorFromPasses) {
  Speeds speeds = speeds_of(3, kEndless);
  speeds.transfers = {1.0 / (sizeof(float) * kElements), 2.0 / (sizeof(float) * kElements)};
  EXPECT_DOUBLE_EQ(time_of("full", 2, speeds), kPasses + 4 * 0.5 * 1 + 3 * 0.5 * 2);
  EXPECT_DOUBLE_EQ(time_of("none", 2, speeds), kPasses + 3 * 0.5 * (1 + 2));
  // A slow link hides them: the last reduction is waited for anyway.
  speeds.bandwidth = sizeof(float) * kElements / 100.0;
  for (LayerCost& cost : speeds.layers) cost = {};
  EXPECT_NEAR(time_of("full", 2, speeds), 50 * (3 + 1 + 3), 3);
}

Result<StepTime> pipeline_time(const char* mesh, std::uint32_t world, const char* sharding,
                               const Speeds& speeds, std::uint32_t micro_batches) {
  PipelineOptions options;
  options.mesh = std::move(parallel::Mesh::parse(mesh, world)).value();
  options.sharded = options_of(sharding, options.mesh.size(parallel::Axis::kData));
  options.micro_batches = micro_batches;
  const auto model = make_model("mlp:100-100-100-100-100");
  return step_time(**model, options, kSamples, speeds);
}

TEST(StepTime, OfStagesIsThatOfTheirSchedule) {
  // A stage of 2 layers computes a fourth of the samples 4 times, and waits for the other once.
  const double part = 2 * (kForward + kBackward) / 4;
  const auto alone = pipeline_time("pp=2", 2, "none", speeds_of(4, kEndless), 4);
  ASSERT_TRUE(alone.ok()) << alone.error().to_string();
  EXPECT_NEAR(alone->all, 5 * part, 1e-6);
  EXPECT_NEAR(alone->computing, 4 * part, 1e-6);
  // With a network each stage is gathered before and reduced after the schedule, half of 2 layers.
  const Speeds speeds = speeds_of(4, sizeof(float) * kElements);
  const auto full = pipeline_time("dp=2,pp=2", 4, "full", speeds, 4);
  ASSERT_TRUE(full.ok()) << full.error().to_string();
  EXPECT_GT(full->all, 1 + 5 * part + 1);
  EXPECT_LT(full->all, 1 + 5 * part + 1 + 0.1);  // activations of a sample, each way
  // A link slower than the stages: 4 samples of 100 numbers in 1 second each.
  const auto slow = pipeline_time("pp=2", 2, "none", speeds_of(4, sizeof(float) * 100.0 / 1e3), 4);
  ASSERT_TRUE(slow.ok()) << slow.error().to_string();
  EXPECT_GE(slow->all, 4e3);
}

}  // namespace
}  // namespace centroid::worker
