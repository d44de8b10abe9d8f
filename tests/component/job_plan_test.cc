#include "worker/node/job_plan.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/node/sharded_memory.h"

namespace centroid::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGigabit = 1e9 / 8;

std::unique_ptr<Model> model_named(const std::string& spec) {
  return std::move(make_model(spec)).value();
}

PlanQuestion question_of(std::uint32_t workers, std::uint64_t memory = 1ull << 40) {
  PlanQuestion out;
  out.workers = workers;
  out.batch = 8;
  out.memory = memory;
  out.bandwidth = kGigabit;
  out.optimizer.name = "adam";
  return out;
}

std::vector<PlanRow> plan(const Model& model, const PlanQuestion& question, double seconds = 0.1) {
  const auto speed = speed_of(model, question, seconds);
  EXPECT_TRUE(speed.ok()) << speed.error().to_string();
  auto rows = plan_job(model, question, *speed);
  EXPECT_TRUE(rows.ok()) << rows.error().to_string();
  return std::move(*rows);
}

std::vector<std::string> flags_of(const std::vector<PlanRow>& rows) {
  std::vector<std::string> out;
  for (const PlanRow& row : rows) out.push_back(row.flags);
  return out;
}

TEST(JobPlan, HasEveryWayToDivideTheModel) {
  const auto model = model_named("mlp:256-256-256-256-10");
  EXPECT_THAT(
      flags_of(plan(*model, question_of(4))),
      ElementsAre("--sharding full", "--sharding grad", "--sharding none", "--sharding hybrid:2",
                  "--parallel dp=2,pp=2 --sharding none", "--parallel dp=2,pp=2 --sharding grad",
                  "--parallel dp=2,pp=2 --sharding full", "--parallel dp=1,pp=4 --sharding none"));
  // Not more stages than layers, and none whose layers share a tensor.
  EXPECT_THAT(flags_of(plan(*model_named("mlp:256-10"), question_of(2))),
              ElementsAre("--sharding full", "--sharding grad", "--sharding none"));
  EXPECT_THAT(flags_of(plan(*model_named("transformer:tied=yes"), question_of(3))),
              ElementsAre("--sharding full", "--sharding grad", "--sharding none"));
}

TEST(JobPlan, EveryWayTrainsTheSameSamples) {
  const auto model = model_named("mlp:256-256-256-256-10");
  for (const PlanRow& row : plan(*model, question_of(4))) {
    const std::uint64_t stages = row.flags.find("pp=4") != std::string::npos   ? 4
                                 : row.flags.find("pp=2") != std::string::npos ? 2
                                                                               : 1;
    EXPECT_EQ(row.batch, 8 * stages) << row.flags;
    EXPECT_EQ(row.micro_batches, stages == 1 ? 0 : 4 * stages) << row.flags;
  }
  PlanQuestion small = question_of(4);
  small.batch = 1;  // as many micro-batches as there are samples
  EXPECT_EQ(plan(*model, small).back().micro_batches, 4u);
}

TEST(JobPlan, MemoryIsThatOfTheJobsThemselves) {
  const auto model = model_named("mlp:256-256-256-256-10");
  const PlanQuestion question = question_of(4);
  const auto rows = plan(*model, question);
  parallel::ShardedOptions options;
  options.optimizer = question.optimizer;
  options.replicas = 1;  // as workers with `auto`
  const auto full = sharded_memory(*model, options, 4);
  ASSERT_TRUE(full.ok()) << full.error().to_string();
  EXPECT_EQ(rows[0].memory.parameters, full->parameters);
  EXPECT_EQ(rows[0].memory.gradients, full->gradients);
  EXPECT_EQ(rows[0].memory.state, full->state);
  EXPECT_GE(rows[0].memory.other, model->work_bytes(8, true));
  EXPECT_LT(rows[0].memory.state, rows[2].memory.state);
}

TEST(JobPlan, TheFastestThatFitsIsRecommended) {
  const auto model = model_named("mlp:1024-1024-1024-1024-10");
  const auto rows = plan(*model, question_of(4));
  const PlanRow* const fastest = recommended(rows);
  ASSERT_NE(fastest, nullptr);
  for (const PlanRow& row : rows) {
    EXPECT_TRUE(row.fits);
    EXPECT_LE(fastest->time.all, row.time.all);
  }
  const std::uint64_t least = std::ranges::min_element(rows, {}, [](const PlanRow& row) {
                                return row.memory.total();
                              })->memory.total();
  const auto tight = plan(*model, question_of(4, least));
  ASSERT_NE(recommended(tight), nullptr);
  EXPECT_EQ(recommended(tight)->memory.total(), least);
  EXPECT_EQ(recommended(plan(*model, question_of(4, least - 1))), nullptr);
}

TEST(JobPlan, ASlowNetworkMakesStagesFaster) {
  const auto model = model_named("mlp:512-512-512-512-512-512-512-512-512");
  PlanQuestion question = question_of(2);
  question.bandwidth = 1e6;
  EXPECT_THAT(recommended(plan(*model, question, 0.01))->flags, HasSubstr("pp=2"));
  question.bandwidth = 1e12;
  EXPECT_THAT(recommended(plan(*model, question, 0.01))->flags, Not(HasSubstr("pp=2")));
}

TEST(JobPlan, AGivenTimeIsThatOfTheLayersTogether) {
  const auto model = model_named("transformer:layers=3,width=32,heads=2,context=16");
  const auto speed = speed_of(*model, question_of(2), 3);
  ASSERT_TRUE(speed.ok()) << speed.error().to_string();
  const auto sums = sums_of(speed->batch.layers);
  EXPECT_NEAR(std::accumulate(sums.begin(), sums.end(), 0.0), 3, 1e-9);
  EXPECT_EQ(sums[0], 0);  // rows of a table are only read
  EXPECT_DOUBLE_EQ(sums[1], sums[2]);
}

TEST(JobPlan, ThisMachineIsMeasured) {
  const auto model = model_named("mlp:64-64-64-10");
  const auto speed = measure_speed(*model, question_of(2), 1ull << 30);
  ASSERT_TRUE(speed.ok()) << speed.error().to_string();
  EXPECT_EQ(speed->batch.layers.size(), 3u);
  EXPECT_EQ(speed->batch.samples, 8u);
  EXPECT_EQ(speed->micro_batch.samples, 2u);
  EXPECT_GT(speed->batch.update, 0);
  EXPECT_GT(speed->batch.fill, 0);
  EXPECT_GT(speed->batch.copy, 0);
  const auto refused = measure_speed(*model, question_of(2), 1000);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("--step-time"));
}

TEST(TransferCosts, AreMeasuredOverLoopback) {
  const auto costs = measure_transfers();
  ASSERT_TRUE(costs.ok()) << costs.error().to_string();
  EXPECT_GT(costs->gather, 0);
  EXPECT_GT(costs->reduce, 0);
  EXPECT_LT(costs->reduce, 1e-3);
  EXPECT_GE(usable_cores(), 1u);
}

TEST(JobPlan, BadInputIsRefused) {
  const auto model = model_named("mlp:64-64-10");
  PlanQuestion question = question_of(0);
  EXPECT_THAT(plan_job(*model, question, {}).error().message(), HasSubstr("not for 0"));
  question = question_of(2);
  question.optimizer.name = "none such";
  EXPECT_FALSE(measure_speed(*model, question, 1ull << 30).ok());
  EXPECT_THAT(speed_of(*model_named("mlp:64-64-10,norm=batch"), question, 1).error().message(),
              HasSubstr("norm=none"));
}

TEST(JobPlan, ABandwidthHasAUnit) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("1Gb/s").value(), kGigabit);
  EXPECT_DOUBLE_EQ(parse_bandwidth("2.5Gb/s").value(), 2.5 * kGigabit);
  EXPECT_DOUBLE_EQ(parse_bandwidth("125MB/s").value(), kGigabit);
  EXPECT_DOUBLE_EQ(parse_bandwidth("800kb/s").value(), 1e5);
  for (const char* text : {"", "1", "1G", "Gb/s", "0Gb/s", "-1Gb/s", "1 Gb/s", "1gb/s", "1Gb/sec",
                           "infGb/s", "nanGb/s", "1e999Gb/s"}) {
    const auto refused = parse_bandwidth(text);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_THAT(refused.error().message(), HasSubstr("1Gb/s (bits)"));
  }
}

}  // namespace
}  // namespace centroid::worker
