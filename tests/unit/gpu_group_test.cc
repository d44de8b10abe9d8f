// Several GPUs in one worker: NCCL among them (tests/support/nccl_stand_in.cc), and the host where
// it cannot be used. The GPUs are those of tests/support/late_device.h.

#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/examples.h"
#include "tests/support/late_device.h"
#include "tests/support/simt.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using namespace test;

using testing::AllOf;
using testing::HasSubstr;

struct StandIn {
  void (*reset)() = nullptr;
  void (*set)(const char*, int, int) = nullptr;
  int (*aborts)(int) = nullptr;
  const char* (*calls)() = nullptr;
  void (*use_streams)(void (*)(void*, bool (*)(void*), void*)) = nullptr;
};

class GpuGroup : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
    simt::use_seed(static_cast<std::uint64_t>(GetParam()));
    simt::use_stream_seed(static_cast<std::uint64_t>(GetParam()));
    handle_ = ::dlopen(NCCL_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    find(in_.reset, "stand_in_reset");
    find(in_.set, "stand_in_set");
    find(in_.aborts, "stand_in_aborts");
    find(in_.calls, "stand_in_calls");
    find(in_.use_streams, "stand_in_use_streams");
    in_.reset();
    in_.use_streams(simt::push);
  }
  void TearDown() override {
    simt::fail_copy(0);
    ::dlclose(handle_);
  }
  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle_, name));
    ASSERT_NE(function, nullptr) << name;
  }

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

  void* handle_ = nullptr;
  StandIn in_;
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

INSTANTIATE_TEST_SUITE_P(Orders, GpuGroup, testing::Values(1, 2));

}  // namespace
}  // namespace centroid::worker
