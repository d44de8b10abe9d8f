// Memory of GPUs and pinned memory: how much, and when it is taken. The GPUs are those of
// tests/support/late_device.h, NCCL is its stand-in.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/cuda/device_residual.h"
#include "common/codec/error_feedback.h"
#include "common/optim/optimizer.h"
#include "tests/support/examples.h"
#include "tests/support/late_cublas_lt.h"
#include "tests/support/late_device.h"
#include "tests/support/nccl_stand_in.h"
#include "tests/support/simt.h"
#include "worker/data/batch_loader.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using namespace test;

using testing::AllOf;
using testing::HasSubstr;

class GpuMemory : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    RecordProperty("seed", GetParam());
    simt::use_seed(static_cast<std::uint64_t>(GetParam()));
    simt::use_stream_seed(static_cast<std::uint64_t>(GetParam()));
  }
  static GroupOptions options_of(const std::string& devices, std::uint64_t batch,
                                 std::uint64_t load_ahead = 0) {
    GroupOptions options;
    options.devices = devices;
    options.nccl = NCCL_STAND_IN;
    options.batch = batch;
    options.load_ahead = load_ahead;
    options.bucket_bytes = 1024;
    options.open = simt::open_late;
    return options;
  }
  centroid::test::StandIn nccl_;
  const Dataset data_ = random_data(100, 1);
};

/// Steps of many lengths.
struct Plan {
  Plan() {
    for (const std::uint64_t samples : {2, 30, 7, 31, 60, 61, 9}) lists.push_back(first(samples));
  }
  std::vector<std::vector<std::uint64_t>> lists;
};

/// Steps that grow, batches that wait on the GPUs, evaluation, and a codec that selects while later
/// buckets are added.
TEST_P(GpuMemory, NothingIsTakenWhileGpusAdd) {
  const auto model = make_model("mlp:12-40-30-5,relu").value();
  const auto plan = ChunkPlan::make(model->manifest(), 512).value();
  const std::string codec = "topk:0.05,values=int8,momentum=0.9,warmup=4";
  for (const std::uint64_t ahead : {0, 4})
    for (const std::uint64_t batch : {0, 30}) {
      SCOPED_TRACE("load ahead " + std::to_string(ahead) + ", batch " + std::to_string(batch));
      const auto group =
          make_replica_group(*model, options_of("cuda:0,cuda:1", batch, ahead)).value();
      model->initialize(7, group->params());
      const auto feedback = ErrorFeedback::make(codec, plan).value();
      const auto at = group->device_gradient();
      feedback->use_device(make_device_residual(codec, plan, at.gradient, *at.device).value());
      group->keep_gradient_on_device();
      const std::uint64_t before = simt::traffic().beside;
      std::uint64_t round = 0;
      for (const auto& samples : Plan().lists) {
        group->expect(data_, {samples, samples, samples});
        for (int again = 0; again < 3; ++again) {
          ++round;
          std::size_t sent = 0;
          const auto step = group->step(data_, samples, [&](TensorId tensor) {
            for (const Chunk& chunk : plan.chunks_of(tensor)) {
              const auto payload = feedback->encode(chunk.id, group->gradients(), round);
              ASSERT_TRUE(payload.ok()) << payload.error().to_string();
              sent += payload->size();
            }
          });
          ASSERT_TRUE(step.ok()) << step.error().to_string();
          EXPECT_GT(sent, 0U);
        }
        ASSERT_TRUE(group->evaluate(data_, 0, 90).ok());
      }
      EXPECT_EQ(simt::traffic().beside, before);
      EXPECT_EQ(group->staged() > 0, ahead > 0);
    }
}

TEST_P(GpuMemory, NothingIsTakenWhileGpusTrainByThemselves) {
  const auto model = make_model("mlp:12-40-30-5,relu").value();
  const auto optimizer = make_optimizer({.name = "adamw", .learning_rate = 0.02}).value();
  const auto group = make_replica_group(*model, options_of("cuda:0,cuda:1", 0, 4)).value();
  model->initialize(7, group->params());
  ResidentTraining* const there = group->resident();
  ASSERT_TRUE(there->reserve(2).ok());
  ASSERT_TRUE(there->load(group->params()).ok());
  const std::uint64_t before = simt::traffic().beside;
  const Plan plan;
  const std::vector<std::span<const std::uint64_t>> batches(plan.lists.begin(), plan.lists.end());
  std::vector<OptimizerStep> steps;
  for (std::size_t i = 0; i < batches.size(); ++i) steps.push_back({optimizer->at(i + 1), 0.5});
  for (int again = 0; again < 3; ++again) {
    group->expect(data_, batches);
    const auto made = there->advance(data_, batches, steps);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
  }
  EXPECT_EQ(simt::traffic().beside, before);
  EXPECT_GT(group->staged(), 0U);
}

/// A GPU of 64 MiB, of which cuBLAS has 32: steps of two samples, and evaluations of 256.
TEST_P(GpuMemory, AnEvaluationThatDoesNotFitIsRefusedBeforeTraining) {
  const auto large = make_model("mlp:12-30000-5").value();
  const auto refused = make_replica_group(*large, options_of("cuda:0", 2, 512));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("device cuda:0: a step of 2 samples takes "),
                    HasSubstr("it and an evaluation of 256 samples "),
                    HasSubstr(" of 67108864 are free"), HasSubstr("Lower --batch")));
  const auto model = make_model("mlp:12-20000-5").value();
  ASSERT_GT(model->work_bytes(256, false), std::uint64_t{18} << 20);
  const Dataset many = random_data(100'000, 3);
  const auto group = make_replica_group(*model, options_of("cuda:0", 2, 512)).value();
  model->initialize(7, group->params());
  const auto all = first(1000);
  std::vector<std::span<const std::uint64_t>> steps;
  for (std::size_t i = 0; i + 2 <= all.size(); i += 2) steps.emplace_back(&all[i], 2);
  ASSERT_TRUE(group->step(many, steps[0], {}).ok());
  group->expect(many, steps);
  for (std::size_t i = 0; i < 40; ++i) ASSERT_TRUE(group->step(many, steps[i], {}).ok());
  EXPECT_GT(group->staged(), 0U);
  const auto judged = group->evaluate(many, 0, 300);  // beside batches that wait
  ASSERT_TRUE(judged.ok()) << judged.error().to_string();
  EXPECT_EQ(judged->samples, 300U);
  // Slots that do not fit beside what has been taken: the numbers of the step stay its own.
  const Status slots = group->resident()->reserve(100);
  ASSERT_FALSE(slots.ok());
  EXPECT_THAT(slots.error().message(),
              AllOf(HasSubstr("device cuda:0: a step of 2 samples takes "),
                    HasSubstr("it and an evaluation of 256 samples "),
                    HasSubstr(" and 100 slots of the optimizer "), HasSubstr("inner.on_gpu no")));
}

/// The first step of a round may be a small one, and later ones larger than was said: batches that
/// wait leave a tenth of the memory free, whatever their size.
TEST_P(GpuMemory, BatchesThatWaitLeaveATenthFree) {
  const auto model = make_model("mlp:12-40-5").value();
  const Dataset many = random_data(100'000, 3);
  const auto large = first(3000);
  const std::vector<std::span<const std::uint64_t>> steps(400, large);
  for (const std::uint64_t batch : {2, 3000}) {
    SCOPED_TRACE("batch " + std::to_string(batch));
    Device* device = nullptr;
    GroupOptions options = options_of("cuda:0", batch, 400);
    options.open = [&](const std::string& spec, Matmul matmul) {
      auto compute = simt::open_late(spec, matmul);
      if (compute.ok()) device = compute->device.get();
      return compute;
    };
    const auto group = make_replica_group(*model, options).value();
    model->initialize(7, group->params());
    const std::uint64_t before = device->room().value().free;
    const auto left = [&] { return device->room().value().free; };
    ASSERT_GT(steps.size() * batch_bytes(many, large.size()), before);
    const auto few = first(2);
    ASSERT_TRUE(group->step(many, few, {}).ok());  // measured
    group->expect(many, steps);
    EXPECT_GE(left(), before / 10);
    EXPECT_LE(left(), before / 2);  // and use the rest
    for (std::size_t i = 0; i < 2; ++i) {
      const auto made = group->step(many, steps[i], {});
      ASSERT_TRUE(made.ok()) << made.error().to_string();
    }
    EXPECT_GT(group->staged(), 0U);
    EXPECT_GE(left(), before / 10);
    const auto largest = first(9000);  // takes more, and leaves less to those that wait
    group->expect(many, {largest, largest});
    const auto made = group->step(many, largest, {});
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    EXPECT_GE(left(), before / 10);
  }
}

/// What was logged by `body`.
template <class Body>
std::string log_of(const Body& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST_P(GpuMemory, WhatIsNotUsedIsSaid) {
  const auto model = make_model("mlp:12-40-5,relu").value();
  const auto train = [&](const GroupOptions& options, bool is_good = true) {
    const auto group = make_replica_group(*model, options).value();
    model->initialize(7, group->params());
    const auto samples = first(20);
    EXPECT_EQ(group->step(data_, samples, {}).ok(), is_good);
  };
  const GroupOptions two = options_of("cuda:0,cuda:1", 20, 3);
  const std::string good = log_of([&] { train(two); });
  EXPECT_THAT(good, AllOf(HasSubstr("devices.calibrated"), HasSubstr("step_bytes="),
                          HasSubstr("batches_ahead=3")));
  for (const char* const never : {"nccl.", "cublaslt.", "memory."})
    EXPECT_THAT(good, testing::Not(HasSubstr(never)));
  GroupOptions none = two;
  none.nccl = "libnccl-that-is-not-here.so.2";
  EXPECT_THAT(log_of([&] { train(none); }),
              AllOf(HasSubstr("nccl.disabled"), HasSubstr("libnccl-that-is-not-here.so.2"),
                    HasSubstr("added on the host")));
  none.nccl = "";
  EXPECT_THAT(log_of([&] { train(none); }), HasSubstr("the setting nccl is empty"));
  GroupOptions plain = two;
  plain.pinned_bytes = 100;
  EXPECT_THAT(log_of([&] { train(plain); }),
              AllOf(HasSubstr("memory.pinning_failed"), HasSubstr("the limit is 100 bytes")));
  simt::use_lt_mode(simt::LtMode::kHidesNan);
  EXPECT_THAT(log_of([&] { train(two); }),
              AllOf(HasSubstr("cublaslt.disabled"), HasSubstr("its ReLU hides NaN")));
  simt::use_lt_mode(simt::LtMode::kHidesNanLater);
  EXPECT_THAT(log_of([&] { train(two); }), HasSubstr("cublaslt.shape_rejected"));
  simt::use_lt_mode(simt::LtMode::kGood);
  nccl_.set("fail_call", 0, 1);
  EXPECT_THAT(log_of([&] { train(two, false); }),
              AllOf(HasSubstr("nccl.aborted"), HasSubstr("unhandled cuda error")));
}

INSTANTIATE_TEST_SUITE_P(Orders, GpuMemory, testing::Values(1, 2));

}  // namespace
}  // namespace centroid::worker
