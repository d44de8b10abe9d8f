// Several GPUs in one worker: NCCL among them (tests/support/nccl_stand_in.cc), and the host where
// it cannot be used. The GPUs are those of tests/support/late_device.h.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/trace.h"
#include "common/device/host_memory.h"
#include "common/optim/norm.h"
#include "common/optim/optimizer.h"
#include "tests/support/examples.h"
#include "tests/support/late_device.h"
#include "tests/support/nccl_stand_in.h"
#include "tests/support/simt.h"
#include "worker/model/transformer.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using namespace test;

using testing::AllOf;
using testing::HasSubstr;

class GpuGroup : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
    simt::use_seed(static_cast<std::uint64_t>(GetParam()));
    simt::use_stream_seed(static_cast<std::uint64_t>(GetParam()));
  }
  void TearDown() override { simt::fail_copy(0); }

  static std::unique_ptr<ReplicaGroup> group_of(const Model& model, const std::string& devices,
                                                const std::string& nccl,
                                                std::uint64_t load_ahead = 0) {
    GroupOptions options;
    options.devices = devices;
    options.nccl = nccl;
    options.load_ahead = load_ahead;
    options.bucket_bytes = 1024;
    options.open = simt::open_late;
    auto group = make_replica_group(model, std::move(options));
    CENTROID_CHECK(group.ok());
    model.initialize(7, (*group)->params());
    return std::move(group).value();
  }

  centroid::test::StandIn in_;
};

constexpr std::uint64_t kFeatures = 12;
constexpr const char* kGpus = "cuda:0,cuda:1,cuda:2";

std::vector<float> gradient_of(ReplicaGroup& group) {
  return {group.gradients().begin(), group.gradients().end()};
}

std::unique_ptr<Model> small_model() { return make_model("mlp:12-40-5,gelu").value(); }

/// The same steps on three CPUs, three GPUs that add through NCCL and three that add on the host.
TEST_P(GpuGroup, AddsAsTheCpusDo) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  const auto cpus = group_of(*model, "cpu:0,cpu:1,cpu:2", "");
  const auto through_nccl = group_of(*model, kGpus, NCCL_STAND_IN);
  const auto on_host = group_of(*model, kGpus, "");
  for (const std::uint64_t samples : {30, 31, 1, 0, 12}) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    const auto expected = cpus->step(data, first(samples), {});
    ASSERT_TRUE(expected.ok());
    for (ReplicaGroup* const group : {through_nccl.get(), on_host.get()}) {
      std::vector<std::uint32_t> order;
      std::vector<float> seen(group->gradients().size());
      const auto result = group->step(data, first(samples), [&](TensorId tensor) {
        order.push_back(tensor.value);
        std::size_t begin = 0;
        for (std::size_t t = 0; t < tensor.value; ++t) begin += model->manifest()[t].elements();
        std::copy_n(group->gradients().begin() + static_cast<std::ptrdiff_t>(begin),
                    model->manifest()[tensor.value].elements(),
                    seen.begin() + static_cast<std::ptrdiff_t>(begin));
      });
      ASSERT_TRUE(result.ok()) << result.error().to_string();
      EXPECT_EQ(order, (std::vector<std::uint32_t>{3, 2, 1, 0}));
      EXPECT_EQ(seen, gradient_of(*group));  // what is ready is final
      EXPECT_LE(difference(gradient_of(*cpus), seen), 1e-4);
      EXPECT_NEAR(result->loss_sum, expected->loss_sum, 1e-5 * (1 + expected->loss_sum));
      EXPECT_EQ(result->correct, expected->correct);
      EXPECT_EQ(result->samples, samples);
    }
    EXPECT_LE(difference(gradient_of(*on_host), gradient_of(*through_nccl)), 1e-6);
    for (ReplicaGroup* const group : {cpus.get(), through_nccl.get(), on_host.get()}) {
      std::size_t i = 0;
      for (float& p : group->params()) p += 0.01F * std::sin(static_cast<float>(++i));
    }
  }
  const auto expected = cpus->evaluate(data, 3, 97).value();
  for (ReplicaGroup* const group : {through_nccl.get(), on_host.get()}) {
    const auto result = group->evaluate(data, 3, 97);
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(result->correct, expected.correct);
    EXPECT_NEAR(result->loss_sum, expected.loss_sum, 1e-3);
  }
}

/// Where it is computed makes no difference, not even in the last bit.
TEST_P(GpuGroup, TheGradientsNormIsThatOfTheHost) {
  const auto model = make_model("mlp:12-40-5,gelu,norm=batch").value();
  const Dataset data = random_data(100, 1);
  for (const char* const nccl : {NCCL_STAND_IN, ""}) {
    const auto group = group_of(*model, kGpus, nccl);
    for (const std::uint64_t samples : {31, 1}) {
      ASSERT_TRUE(group->step(data, first(samples), {}).ok());
      const auto norm = group->gradient_norm();
      ASSERT_TRUE(norm.ok()) << norm.error().to_string();
      EXPECT_EQ(*norm, std::sqrt(sum_of_squares(group->gradients().first(group->trained()))));
      EXPECT_GT(*norm, 1e-4);
    }
  }
  const auto left = group_of(*model, kGpus, NCCL_STAND_IN);
  ASSERT_TRUE(left->step(data, first(31), {}).ok());
  const double before = left->gradient_norm().value();
  left->keep_gradient_on_device();
  std::ranges::fill(left->gradients(), 0.0F);
  ASSERT_TRUE(left->step(data, first(31), {}).ok());
  EXPECT_EQ(left->gradient_norm().value(), before);
}

/// Ten samples on three GPUs, 4, 3 and 3, are ten on one CPU: 1e-6 of the largest number.
TEST_P(GpuGroup, SharesOfTenSamplesGiveTheGradientOfTen) {
  const auto model = small_model();
  const Dataset data = random_data(10, 6);
  const auto one = group_of(*model, "cpu:0", "");
  ASSERT_TRUE(one->step(data, first(10), {}).ok());
  for (const char* const nccl : {NCCL_STAND_IN, ""}) {
    const auto three = group_of(*model, kGpus, nccl);
    ASSERT_TRUE(three->step(data, first(10), {}).ok());
    EXPECT_LE(difference(gradient_of(*one), gradient_of(*three)), 1e-6) << nccl;
  }
}

/// As many numbers are added as are trained, on every backend, with adapters too.
TEST_P(GpuGroup, TheGradientIsAsLongAsWhatIsTrained) {
  const auto adapted = TransformerConfig::parse(
                           "transformer:layers=1,width=8,heads=2,context=6,vocabulary=20,lora=2")
                           .value();
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(small_model());
  models.push_back(std::make_unique<Transformer>(
      adapted, std::make_shared<BaseWeights>(random_floats(elements_of(adapted.whole()), 3, 0.1))));
  EXPECT_LT(elements_of(models[1]->manifest()), elements_of(adapted.whole()));
  for (const auto& model : models)
    for (const auto& [devices, nccl] :
         {std::pair("cpu:0,cpu:1", ""), {"cuda:0", ""}, {kGpus, ""}, {kGpus, NCCL_STAND_IN}}) {
      const auto group = group_of(*model, devices, nccl);
      EXPECT_EQ(group->gradients().size(), elements_of(model->manifest())) << devices;
      EXPECT_EQ(group->params().size(), elements_of(model->manifest())) << devices;
      ResidentTraining* const there = group->resident();
      if (there == nullptr) continue;
      std::vector<float> got(elements_of(model->manifest()));
      EXPECT_TRUE(there->load(group->params()).ok() && there->store(got).ok());
      EXPECT_TRUE(std::ranges::equal(got, group->params()));
    }
}

/// Of a GPU's memory only those that add with it have access, and each to all others.
TEST_P(GpuGroup, GpusOfAGroupReachEachOther) {
  const auto model = small_model();
  const auto before = simt::traffic().shared;
  const auto one = group_of(*model, "cuda:5,cpu:0", NCCL_STAND_IN);
  EXPECT_EQ(simt::traffic().shared, before);
  const auto three = group_of(*model, kGpus, NCCL_STAND_IN);
  EXPECT_EQ(simt::traffic().shared.substr(before.size()),
            "cuda:0>cuda:1 cuda:0>cuda:2 cuda:1>cuda:0 cuda:1>cuda:2 cuda:2>cuda:0 cuda:2>cuda:1 ");
}

/// The way of parameters and gradients is a row of the trace of its own.
TEST_P(GpuGroup, AdditionsAndCopiesAreInTheTrace) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
  ASSERT_TRUE(group->step(data, first(20), {}).ok());
  const std::string trace = trace::to_json(600);
  for (const char* const gpu : {"cuda:0", "cuda:1", "cuda:2"})
    EXPECT_THAT(trace, HasSubstr(std::string(gpu) + " transfer"));
  EXPECT_THAT(trace, HasSubstr("\"exchange\""));
}

/// Parameters come by broadcast; then a group of calls for every bucket, the last tensors first.
TEST_P(GpuGroup, EveryBucketIsOneAddition) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
  ASSERT_TRUE(group->step(data, first(20), {}).ok());
  // 820 + 520 bytes are more than 1024; 1920 of the first weight alone are too.
  EXPECT_STREQ(in_.calls(), "broadcast | all_reduce | all_reduce |");
  ASSERT_TRUE(group->step(data, {}, {}).ok());  // nothing to weigh by: nobody adds
  EXPECT_STREQ(in_.calls(), "broadcast | all_reduce | all_reduce | broadcast |");
}

TEST_P(GpuGroup, ACallThatFailsEndsTheStepOfAll) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
  ASSERT_TRUE(group->step(data, first(20), {}).ok());
  in_.set("fail_call", 0, 1);
  const auto failed = group->step(data, first(20), {});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(failed.error().message(),
              AllOf(HasSubstr("device 1"), HasSubstr("unhandled cuda error")));
  in_.set("fail_call", 0, -1);
  const auto after = group->step(data, first(20), {});
  ASSERT_FALSE(after.ok());  // NCCL cannot go on
  EXPECT_THAT(after.error().message(), HasSubstr("unhandled cuda error"));
  for (int device = 0; device < 3; ++device) EXPECT_EQ(in_.aborts(device), 1);
}

/// A GPU that fails by itself never comes to the addition: the others are let go at once.
TEST_P(GpuGroup, AGpuThatFailsEndsTheWaitOfTheOthers) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  for (const std::uint64_t copy : {1U, 3U, 6U}) {
    SCOPED_TRACE(copy);
    const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
    simt::fail_copy(copy);
    const auto failed = group->step(data, first(20), {});
    simt::fail_copy(0);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.error().message(), HasSubstr("an illegal memory access"));
  }
}

TEST_P(GpuGroup, AnErrorOfACommunicatorEndsTheStep) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
  in_.set("async_error", 1, 2);
  // The watch looks every few milliseconds; steps before that are good ones.
  Result<GroupStep> step = GroupStep{};
  for (int i = 0; i < 10'000 && step.ok(); ++i) step = group->step(data, first(20), {});
  ASSERT_FALSE(step.ok());
  EXPECT_THAT(step.error().message(), HasSubstr("device 2: unhandled cuda error"));
}

TEST_P(GpuGroup, WithoutNcclTheHostAdds) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto cpus = group_of(*model, "cpu:0,cpu:1,cpu:2", "");
  ASSERT_TRUE(cpus->step(data, first(20), {}).ok());
  in_.set("version", 2804, 0);
  for (const char* const library : {"libnccl-that-is-not-here.so.2", NCCL_STAND_IN, ""}) {
    const auto group = group_of(*model, kGpus, library);
    ASSERT_TRUE(group->step(data, first(20), {}).ok());
    EXPECT_LE(difference(gradient_of(*cpus), gradient_of(*group)), 1e-4);
  }
  EXPECT_STREQ(in_.calls(), "");
  // Of different kinds: the host too.
  const auto mixed = group_of(*model, "cuda:1,cpu:0,cuda:0", NCCL_STAND_IN);
  ASSERT_TRUE(mixed->step(data, first(20), {}).ok());
  EXPECT_LE(difference(gradient_of(*cpus), gradient_of(*mixed)), 1e-4);
}

/// Batches that wait on the GPUs are the same batches, the last short one too.
TEST_P(GpuGroup, LoadsAheadOntoTheGpus) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  const auto all = first(100);
  std::vector<std::span<const std::uint64_t>> steps;
  for (std::size_t at = 0; at < all.size(); at += 9)
    steps.push_back(std::span(all).subspan(at, std::min<std::size_t>(9, all.size() - at)));
  const auto plain = group_of(*model, kGpus, "");
  const auto ahead = group_of(*model, kGpus, "", 3);
  ahead->expect(data, steps);
  for (const auto step : steps) {
    const std::uint64_t before = ahead->staged();
    ASSERT_TRUE(plain->step(data, step, {}).ok());
    ASSERT_TRUE(ahead->step(data, step, {}).ok());
    EXPECT_EQ(gradient_of(*ahead), gradient_of(*plain));
    EXPECT_LE(ahead->staged() - before, 1U);
  }
  // The first were loaded before the memory was measured.
  EXPECT_GE(ahead->staged(), steps.size() - 5);
  EXPECT_LT(ahead->staged(), steps.size());
  EXPECT_EQ(plain->staged(), 0U);
}

/// What a batch may take of a GPU is that of a whole batch, though the first one was short.
TEST_P(GpuGroup, AShortFirstStepLeavesRoomForLongerOnes) {
  const auto model = make_model("mlp:12-4000-5,gelu").value();
  const Dataset data = random_data(100, 1);
  const auto all = first(100);
  const std::vector<std::span<const std::uint64_t>> steps{
      std::span(all).subspan(1, 2), std::span(all).subspan(3, 2), std::span(all).subspan(5, 2)};
  for (const bool fills_the_gpu : {true, false}) {
    GroupOptions options;
    options.devices = "cuda:0";
    options.open = simt::open_late;
    options.load_ahead = 3;
    options.batch = 10;
    while (fills_the_gpu && model->work_bytes(options.batch + 1, true) < (30u << 20))
      ++options.batch;
    const auto group = make_replica_group(*model, options).value();
    ASSERT_TRUE(group->step(data, first(1), {}).ok());
    group->expect(data, steps);
    for (const auto step : steps) ASSERT_TRUE(group->step(data, step, {}).ok());
    EXPECT_EQ(group->staged() == 0, fills_the_gpu) << group->staged();
  }
}

TEST_P(GpuGroup, AStepThatDoesNotFitIsRefusedBeforeTraining) {
  const auto model = small_model();
  GroupOptions options;
  options.devices = "cuda:0,cuda:1";
  options.open = simt::open_late;
  options.batch = 100;
  EXPECT_TRUE(make_replica_group(*model, options).ok());
  options.batch = 400'000;
  const auto group = make_replica_group(*model, options);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(group.error().message(),
              AllOf(HasSubstr("device cuda:0: a step of 200000 samples takes "),
                    HasSubstr("of 67108864 are free"), HasSubstr("Lower --batch")));
}

/// One step with the first samples.
Result<GroupStep> advance(ResidentTraining& there, const Dataset& data, std::uint64_t samples,
                          const OptimizerStep& step) {
  const auto all = first(samples);
  const std::span<const std::uint64_t> batch(all);
  return there.advance(data, {&batch, 1}, {&step, 1});
}

/// Steps that are queued one behind the other: the bits of steps one by one, and the host waits no
/// more often for four than for one.
TEST_P(GpuGroup, StepsAreQueuedBeforeTheirLossesAreWaitedFor) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  const auto optimizer = make_optimizer({.name = "adamw", .learning_rate = 0.02}).value();
  std::vector<std::vector<std::uint64_t>> samples;
  std::vector<std::span<const std::uint64_t>> batches;
  std::vector<OptimizerStep> steps;
  for (std::uint64_t i = 0; i < kQueuedSteps; ++i) {
    samples.push_back(first(5 + 3 * (i % 4)));
    for (std::uint64_t& sample : samples.back()) sample = (sample + 11 * i) % 100;
    steps.push_back({optimizer->at(i + 1), 0.5});
  }
  for (const auto& one : samples) batches.emplace_back(one);
  for (const char* const devices : {"cuda:0", kGpus})
    for (const std::uint64_t ahead : {0, 3}) {
      SCOPED_TRACE(std::string(devices) + ", load ahead " + std::to_string(ahead));
      double losses = 0;
      std::vector<std::vector<float>> params;
      for (const bool is_queued : {false, true}) {
        const auto group = group_of(*model, devices, NCCL_STAND_IN, ahead);
        ResidentTraining* const there = group->resident();
        ASSERT_TRUE(there->reserve(2).ok());
        ASSERT_TRUE(there->load(group->params()).ok());
        for (int again = 0; again < 3; ++again) {  // batches wait on the GPUs from the second on
          group->expect(data, batches);
          for (std::size_t at = 0; at < batches.size(); at += is_queued ? batches.size() : 1) {
            const std::size_t count = is_queued ? batches.size() : 1;
            const auto made = there->advance(data, std::span(batches).subspan(at, count),
                                             std::span(steps).subspan(at, count));
            ASSERT_TRUE(made.ok()) << made.error().to_string();
            losses += is_queued ? -made->loss_sum : made->loss_sum;
          }
        }
        if (ahead > 0) {
          EXPECT_GT(group->staged(), 0U);
        }
        ASSERT_TRUE(there->store(params.emplace_back(group->params().size())).ok());
      }
      EXPECT_EQ(params[0], params[1]);
      EXPECT_NEAR(losses, 0, 1e-9);
    }
  const auto group = group_of(*model, "cuda:0", "");
  ResidentTraining* const there = group->resident();
  ASSERT_TRUE(there->reserve(2).ok());
  ASSERT_TRUE(there->load(group->params()).ok());
  const auto waits_of = [&](std::size_t count) {
    const std::uint64_t before = simt::traffic().waits;
    EXPECT_TRUE(
        there->advance(data, std::span(batches).first(count), std::span(steps).first(count)).ok());
    return simt::traffic().waits - before;
  };
  waits_of(4);  // takes the memory
  const std::uint64_t one = waits_of(1);
  EXPECT_LE(waits_of(4), one + 1);  // whether the last thing is over when it is asked for is chance
  EXPECT_GT(one, 0U);
}

/// Parameters and slots stay on the GPUs; the same optimizer on the host, after every step, has the
/// same bits. A rank that went another way would spoil the mean of the next step.
TEST_P(GpuGroup, AnOptimizerOnTheGpusGivesTheBitsOfTheHosts) {
  const auto model = small_model();
  const Dataset data = random_data(100, 1);
  const OptimizerConfig config{.name = "adamw", .learning_rate = 0.02, .weight_decay = 0.1};
  const auto optimizer = make_optimizer(config).value();
  for (const char* const devices : {"cuda:0", kGpus})
    for (const double bound : {0.0, 0.2}) {
      SCOPED_TRACE(std::string(devices) + ", bound " + std::to_string(bound));
      auto host = group_of(*model, devices, NCCL_STAND_IN);
      auto group = group_of(*model, devices, NCCL_STAND_IN);
      ResidentTraining* const there = group->resident();
      ASSERT_NE(there, nullptr);
      const std::size_t n = host->params().size();
      std::vector<std::vector<float>> slots(2, std::vector<float>(n));
      std::vector<float> params(n), slot(n);
      ASSERT_TRUE(there->reserve(2).ok());
      ASSERT_TRUE(there->load(group->params()).ok());
      std::uint64_t number = 0;
      for (const std::uint64_t samples : {30, 31, 2, 12}) {
        const auto expected = host->step(data, first(samples), {}).value();
        const std::span<float> gradient = host->gradients();
        const float factor = clip_factor(std::sqrt(sum_of_squares(gradient)), bound);
        for (float& g : gradient) g *= factor;
        EXPECT_EQ(factor < 1, bound > 0);
        const std::vector<std::span<float>> spans(slots.begin(), slots.end());
        optimizer->step(++number, host->params(), gradient, spans, host->params());
        const auto result = advance(*there, data, samples, {optimizer->at(number), bound});
        ASSERT_TRUE(result.ok()) << result.error().to_string();
        EXPECT_EQ(result->loss_sum, expected.loss_sum);
        EXPECT_EQ(result->samples, samples);
      }
      for (std::size_t d = 0; d < group->devices(); ++d) {
        ASSERT_TRUE(there->store(params, d).ok());
        EXPECT_TRUE(std::ranges::equal(params, host->params())) << d;
        for (std::size_t k = 0; k < 2; ++k) {
          ASSERT_TRUE(there->store_slot(k, slot, d).ok());
          EXPECT_EQ(slot, slots[k]) << d;
        }
      }
      // Slots that come from elsewhere.
      for (float& x : slot) x += 1;
      ASSERT_TRUE(there->load_slot(1, slot).ok());
      std::vector<float> back(n);
      ASSERT_TRUE(there->store_slot(1, back).ok());
      EXPECT_EQ(back, slot);
      host.reset();
      group.reset();
      EXPECT_LE(in_.aborts(0), 0);  // nothing was under way (-1: one GPU, no communicator)
    }
}

TEST_P(GpuGroup, AStepOnTheGpusMovesBatchAndLossesAndTakesNoMemory) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto optimizer = make_optimizer({.name = "momentum"}).value();
  const auto group = group_of(*model, "cuda:0", "");
  ResidentTraining* const there = group->resident();
  ASSERT_TRUE(there->reserve(1).ok());
  ASSERT_TRUE(there->load(group->params()).ok());
  ASSERT_TRUE(advance(*there, data, 20, {optimizer->at(1), 1.0}).ok());
  const simt::Traffic before = simt::traffic();
  ASSERT_TRUE(advance(*there, data, 20, {optimizer->at(2), 1.0}).ok());
  const simt::Traffic after = simt::traffic();
  EXPECT_EQ(after.allocations, before.allocations);
  const std::uint64_t batch = 20 * (kFeatures + 1) * sizeof(float);
  EXPECT_LE(after.to_device - before.to_device, batch + 256);
  EXPECT_LE(after.to_host - before.to_host, 64U);
  ASSERT_TRUE(group->step(data, first(20), {}).ok());
  EXPECT_GE(simt::traffic().to_host - after.to_host, group->gradients().size_bytes());
}

TEST_P(GpuGroup, WhereTheHostAddsNothingStaysOnTheGpus) {
  const auto model = small_model();
  EXPECT_EQ(group_of(*model, kGpus, "")->resident(), nullptr);
  EXPECT_EQ(group_of(*model, "cuda:0,cpu:0", "")->resident(), nullptr);
  EXPECT_EQ(group_of(*model, "cpu:0", "")->resident(), nullptr);
  EXPECT_NE(group_of(*model, "cuda:0", "")->resident(), nullptr);
}

TEST_P(GpuGroup, SlotsThatDoNotFitAreRefusedBeforeTraining) {
  const auto model = make_model("mlp:12-4000-5,gelu").value();
  GroupOptions options;
  options.devices = "cuda:0";
  options.open = simt::open_late;
  const std::uint64_t plane = elements_of(model->manifest()) * sizeof(float);
  // What is free beside cuBLAS's memory, parameters and gradient holds a step and one slot.
  const std::uint64_t free = (64u << 20) - (32u << 20) - 2 * plane - (1u << 18);
  options.batch = 1;
  while (model->work_bytes(options.batch + 1, true) + plane < free) ++options.batch;
  const auto group = make_replica_group(*model, options);
  ASSERT_TRUE(group.ok()) << group.error().to_string();
  EXPECT_TRUE((*group)->resident()->reserve(1).ok());
  EXPECT_TRUE((*group)->resident()->reserve(0).ok());
  const Status refused = (*group)->resident()->reserve(2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("2 slots of the optimizer " + std::to_string(2 * plane)),
                    HasSubstr("of 67108864 are free"), HasSubstr("inner.on_gpu no")));
}

TEST_P(GpuGroup, AFailureOnTheGpusEndsTheStep) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto optimizer = make_optimizer({.name = "sgd"}).value();
  for (const std::uint64_t copy : {1U, 2U}) {  // of a batch, or of losses
    const auto group = group_of(*model, kGpus, NCCL_STAND_IN);
    ResidentTraining* const there = group->resident();
    ASSERT_TRUE(there->reserve(0).ok() && there->load(group->params()).ok());
    simt::fail_copy(copy);
    const auto failed = advance(*there, data, 20, {optimizer->at(1), 0.0});
    simt::fail_copy(0);
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(failed.error().message(), HasSubstr("an illegal memory access"));
  }
}

/// Memory of the host: pinned up to a bound, lent again, and plain where it is refused.
TEST_P(GpuGroup, HostMemoryIsPinnedAndComesBack) {
  const auto device = simt::make_late_device(0);
  HostMemory memory(*device, 10'000);
  const std::uint64_t before = simt::traffic().allocations;
  std::byte* data = nullptr;
  {
    const Buffer a = memory.take(4000);
    data = a.data();
    EXPECT_EQ(memory.use().pinned, 4000U);
  }
  EXPECT_EQ(memory.use().unused, 4000U);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(memory.take(3000).data(), data);
  EXPECT_EQ(simt::traffic().allocations - before, 1U);
  {
    const Buffer small = memory.take(1000);  // not in memory that is four times as large
    EXPECT_NE(small.data(), data);
    const Buffer b = memory.take(8000);  // what is kept makes room for it
    EXPECT_EQ(memory.use().pinned, 9000U);
    EXPECT_EQ(memory.use().unused, 0U);
    const Buffer plain = memory.take(2000);
    EXPECT_EQ(memory.use().refused, 2000U);
    EXPECT_EQ(memory.use().pinned, 9000U);
  }
  EXPECT_EQ(memory.use().unused, 9000U);
  simt::limit_pinned(300);
  {
    const Buffer plain = memory.take(400);
    EXPECT_EQ(memory.use().refused, 2400U);
    EXPECT_EQ(memory.use().unused, 0U);  // given back before that
    std::ranges::fill(plain.bytes(), std::byte{1});
  }
  simt::limit_pinned(std::size_t{1} << 40);
  std::optional<Buffer> longest;
  {
    HostMemory gone(*device, 100);
    longest = gone.take(100);
  }
  std::ranges::fill(longest->bytes(), std::byte{2});  // outlives its pool
}

/// The setting's bound, and a machine that pins nothing at all.
TEST_P(GpuGroup, WithoutPinnedMemoryTheGradientIsTheSame) {
  const auto model = small_model();
  const Dataset data = random_data(20, 1);
  const auto pinned = group_of(*model, kGpus, "", 2);
  ASSERT_TRUE(pinned->step(data, first(20), {}).ok());
  for (const bool machine_refuses : {false, true}) {
    if (machine_refuses) simt::limit_pinned(0);
    GroupOptions options;
    options.devices = kGpus;
    options.nccl = "";
    options.open = simt::open_late;
    options.load_ahead = 2;
    if (!machine_refuses) options.pinned_bytes = 4000;  // less than two planes
    const auto plain = make_replica_group(*model, std::move(options)).value();
    model->initialize(7, plain->params());
    const auto all = first(20);
    plain->expect(data, {all, all});
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(plain->step(data, all, {}).ok());
    EXPECT_EQ(gradient_of(*plain), gradient_of(*pinned));
    simt::limit_pinned(std::size_t{1} << 40);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, GpuGroup, testing::Values(1, 2));

}  // namespace
}  // namespace centroid::worker
