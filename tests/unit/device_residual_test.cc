// Error feedback beside a gradient that lives on a GPU against the same on the host: the bytes of
// every payload, and what is left. Built twice (tests/support/test_gpu.h): for a GPU, and for what
// stands in for it, which also fails when it is told to.

#include "common/codec/cuda/device_residual.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/codec/error_feedback.h"
#include "tests/support/test_gpu.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using testing::Each;
using testing::HasSubstr;

Dataset some_data() {
  CounterRng rng(1);
  Dataset data;
  data.name = "random";
  data.samples = 40;
  data.features = 30;
  data.classes = 5;
  for (std::uint64_t i = 0; i < data.samples * data.features; ++i)
    data.x.push_back(static_cast<float>(rng.normal()));
  for (std::uint64_t i = 0; i < data.samples; ++i)
    data.y.push_back(static_cast<std::uint32_t>(rng.below(5)));
  return data;
}

std::vector<float> copy_of(std::span<const float> of) { return {of.begin(), of.end()}; }

/// A group on one GPU, with a codec.
struct Sender {
  Sender(const Model& model, const std::string& codec, bool on_device, const ChunkPlan& plan) {
    GroupOptions options;
    options.devices = centroid::test::gpu_name();
    options.open = centroid::test::open_gpu;
    options.bucket_bytes = 2000;
    group = make_replica_group(model, std::move(options)).value();
    model.initialize(3, group->params());
    feedback = ErrorFeedback::make(codec, plan).value();
    if (!on_device) return;
    const auto at = group->device_gradient();
    feedback->use_device(make_device_residual(codec, plan, at.gradient, *at.device).value());
    group->keep_gradient_on_device();
  }
  std::unique_ptr<ReplicaGroup> group;
  std::unique_ptr<ErrorFeedback> feedback;  // goes first: it uses the device
};

class OnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

TEST_P(OnDevice, SendsTheBytesOfTheHost) {
  const auto model = make_model("mlp:30-60-5,relu").value();
  const Dataset data = some_data();
  const auto plan = ChunkPlan::make(model->manifest(), 2048).value();
  Sender host(*model, GetParam(), false, plan), device(*model, GetParam(), true, plan);
  std::vector<std::uint64_t> samples(12);
  for (std::uint64_t round = 1; round <= 6; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::iota(samples.begin(), samples.end(), 4 * round);
    for (Sender* const one : {&host, &device}) {
      ASSERT_TRUE(one->group->step(data, samples, {}).ok());
      float i = 0;
      for (float& p : one->group->params()) p += 0.01F * std::sin(i += 1.0F);
    }
    for (const Chunk& chunk : plan.chunks()) {
      const auto right = host.feedback->encode(chunk.id, host.group->gradients(), round);
      const auto got = device.feedback->encode(chunk.id, device.group->gradients(), round);
      ASSERT_TRUE(right.ok() && got.ok()) << got.error().to_string();
      EXPECT_TRUE(std::ranges::equal(*right, *got)) << to_string(chunk.id);
      const auto again = device.feedback->encode(chunk.id, device.group->gradients(), round);
      EXPECT_EQ(again->data(), got->data());  // within a round a chunk has one payload
    }
    EXPECT_EQ(device.feedback->totals().sent, host.feedback->totals().sent);
    EXPECT_EQ(device.feedback->totals().dense_chunks, host.feedback->totals().dense_chunks);
    EXPECT_EQ(device.feedback->totals().bytes, host.feedback->totals().bytes);
    for (Sender* const one : {&host, &device}) {
      if (round == 2)
        one->feedback->take_back();
      else
        one->feedback->commit();
    }
    EXPECT_EQ(device.feedback->residual_norm(), host.feedback->residual_norm());
    const auto left = device.feedback->state(), right = host.feedback->state();
    EXPECT_TRUE(std::ranges::equal(left.residual, right.residual));
    EXPECT_TRUE(std::ranges::equal(left.momentum, right.momentum));
    EXPECT_EQ(left.rounds, right.rounds);
    if (round == 4) {  // a worker that starts again takes what was kept
      const auto residual = copy_of(left.residual), momentum = copy_of(left.momentum);
      device.feedback->reset();
      EXPECT_THAT(copy_of(device.feedback->state().residual), Each(0.0F));
      ASSERT_TRUE(device.feedback->restore({residual, momentum, right.rounds}).ok());
    }
  }
  EXPECT_THAT(copy_of(device.group->gradients()), Each(0.0F));  // nothing was copied
}

INSTANTIATE_TEST_SUITE_P(Codecs, OnDevice,
                         testing::Values("topk:0.05", "topk:0.1,values=int8,momentum=0.9",
                                         "topk:0.02,scope=global", "topk:0.8", "int8:feedback=on",
                                         "sign", "bf16:feedback=on"),
                         [](const testing::TestParamInfo<const char*>& of) {
                           return "Codec" + std::to_string(of.index);
                         });

/// Rounds that are begun anew, and one that is promised and lost: the bits of the host, each time.
TEST_P(OnDevice, UndoesRoundsAsTheHostDoes) {
  const auto model = make_model("mlp:30-60-5,relu").value();
  const Dataset data = some_data();
  const auto plan = ChunkPlan::make(model->manifest(), 2048).value();
  Sender host(*model, GetParam(), false, plan), device(*model, GetParam(), true, plan);
  const auto expect_same = [&] {
    const auto left = device.feedback->state(), right = host.feedback->state();
    EXPECT_TRUE(std::ranges::equal(left.residual, right.residual));
    EXPECT_TRUE(std::ranges::equal(left.momentum, right.momentum));
    EXPECT_EQ(left.rounds, right.rounds);
  };
  for (std::uint64_t round = 1; round <= 6; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (Sender* const one : {&host, &device})
      ASSERT_TRUE(one->group->step(data, std::vector<std::uint64_t>{1, 2, round}, {}).ok());
    const auto before = copy_of(device.feedback->state().residual);
    for (std::size_t until = round; until-- > 0;) {  // some chunks, one begun, then none of it was
      for (std::size_t c = 0; c < std::min(until, plan.chunks().size()); ++c)
        ASSERT_TRUE(
            device.feedback->encode(plan.chunks()[c].id, device.group->gradients(), round).ok());
      if (until % 2 == 0) (void)device.feedback->prepare(plan.chunks().back().id, round);
      device.feedback->undo();
      EXPECT_EQ(copy_of(device.feedback->state().residual), before);
    }
    for (const Chunk& chunk : plan.chunks()) {
      const auto right = host.feedback->encode(chunk.id, host.group->gradients(), round);
      const auto got = device.feedback->encode(chunk.id, device.group->gradients(), round);
      ASSERT_TRUE(right.ok() && got.ok());
      EXPECT_TRUE(std::ranges::equal(*right, *got)) << to_string(chunk.id);
    }
    for (Sender* const one : {&host, &device}) {
      if (round % 3 == 0)
        one->feedback->commit_promised();
      else
        one->feedback->commit();
      if (round == 4 || round == 6) one->feedback->undo_promised();  // of round 3, and at once
    }
    expect_same();
    if (round == 6) {
      EXPECT_EQ(copy_of(device.feedback->state().residual), before);
    }
  }
}

/// Who looks whether it is ready never waits, and gets the same bytes. A unit that was begun when
/// its round ends is taken back as if it had been sent, and its gradient is not read afterwards.
TEST(DeviceResidual, IsLookedAtWithoutWaiting) {
  SKIP_WITHOUT_GPU();
  const auto model = make_model("mlp:30-60-5,relu").value();
  const Dataset data = some_data();
  const auto plan = ChunkPlan::make(model->manifest(), 2048).value();
  for (const char* const codec : {"topk:0.05", "topk:0.05,momentum=0.9", "int8:feedback=on"}) {
    SCOPED_TRACE(codec);
    Sender waits(*model, codec, true, plan), looks(*model, codec, true, plan);
    std::uint64_t not_yet = 0;
    for (std::uint64_t round = 1; round <= 5; ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      for (Sender* const one : {&waits, &looks}) {
        const std::vector<std::uint64_t> samples{1, 2, round};
        ASSERT_TRUE(one->group->step(data, samples, {}).ok());
      }
      for (const Chunk& chunk : plan.chunks()) {
        const auto right = waits.feedback->encode(chunk.id, waits.group->gradients(), round);
        if (round == 3 && chunk.tensor.value == 1) {       // the round ends before it is encoded
          (void)looks.feedback->prepare(chunk.id, round);  // begun, in most cases not done
          waits.feedback->take_back();
          looks.feedback->take_back();
          break;
        }
#if !defined(CENTROID_TEST_GPU)
        const std::uint64_t before = simt::traffic().waits;
#endif
        while (!looks.feedback->prepare(chunk.id, round)) ++not_yet;
        const auto got = looks.feedback->encode(chunk.id, looks.group->gradients(), round);
#if !defined(CENTROID_TEST_GPU)
        EXPECT_EQ(simt::traffic().waits, before);
#endif
        ASSERT_TRUE(right.ok() && got.ok());
        EXPECT_TRUE(std::ranges::equal(*right, *got)) << to_string(chunk.id);
      }
      if (round != 3) {
        waits.feedback->commit();
        looks.feedback->commit();
      }
      EXPECT_EQ(copy_of(looks.feedback->state().residual),
                copy_of(waits.feedback->state().residual));
    }
#if !defined(CENTROID_TEST_GPU)  // which may be faster than who looks
    EXPECT_GT(not_yet, 0U);
#endif
  }
}

#if !defined(CENTROID_TEST_GPU)
TEST(DeviceResidual, AFailureOfTheDeviceIsToldAndNeverKept) {
  const auto model = make_model("mlp:30-60-5,relu").value();
  const auto plan = ChunkPlan::make(model->manifest(), 2048).value();
  const Dataset data = some_data();
  Sender device(*model, "topk:0.05", true, plan);
  ASSERT_TRUE(device.group->step(data, std::vector<std::uint64_t>{1, 2, 3}, {}).ok());
  ASSERT_TRUE(device.feedback->encode(ChunkId(0), device.group->gradients(), 1).ok());
  simt::fail_copy(1);
  EXPECT_TRUE(std::isnan(device.feedback->state().residual[0]));  // which `restore` refuses
  simt::fail_copy(1);
  device.feedback->reset();
  simt::fail_copy(0);
  const auto sent = device.feedback->encode(ChunkId(0), device.group->gradients(), 2);
  ASSERT_FALSE(sent.ok());
  EXPECT_THAT(sent.error().message(), HasSubstr("an illegal memory access"));
  EXPECT_THAT(sent.error().message(), HasSubstr("this worker cannot go on"));
  EXPECT_EQ(sent.error().code(), ErrorCode::kInternal);  // not as numbers that are refused
}

/// Wherever it fails, it is told from then on, for what was left out is lost.
TEST(DeviceResidual, AFailureInEncodingIsForGood) {
  const auto model = make_model("mlp:30-60-5,relu").value();
  const auto plan = ChunkPlan::make(model->manifest(), 2048).value();
  const Dataset data = some_data();
  for (const char* const codec : {"bf16:feedback=on", "int8:feedback=on"}) {
    std::uint64_t failures = 0;
    for (std::uint64_t copy = 1; copy < 20; ++copy) {
      SCOPED_TRACE(codec + std::string(", copy ") + std::to_string(copy));
      Sender device(*model, codec, true, plan);
      ASSERT_TRUE(device.group->step(data, std::vector<std::uint64_t>{1, 2, 3}, {}).ok());
      simt::fail_copy(copy);
      bool has_failed = false;
      for (const Chunk& chunk : plan.chunks()) {
        (void)device.feedback->prepare(chunk.id, 1);
        const auto sent = device.feedback->encode(chunk.id, device.group->gradients(), 1);
        if (sent.ok()) {
          ASSERT_FALSE(has_failed);
          continue;
        }
        has_failed = true;
        ASSERT_EQ(sent.error().code(), ErrorCode::kInternal);
        ASSERT_THAT(sent.error().message(), HasSubstr("of tensor "));
        ASSERT_THAT(sent.error().message(), HasSubstr("it ends with status 1"));
      }
      simt::fail_copy(0);
      failures += has_failed ? 1 : 0;
    }
    EXPECT_GT(failures, 3U);
  }
}
#endif

TEST(DeviceResidual, ClippingStaysOnTheHost) {
  SKIP_WITHOUT_GPU();
  const auto device =
      centroid::test::open_gpu(centroid::test::gpu_name(), Matmul::kF32).value().device;
  const auto memory = device->allocate(400).value();
  const auto plan = ChunkPlan::make({{"w", DType::kF32, {100}}}, 2048).value();
  const auto made = make_device_residual("topk:0.05,clip=1", plan,
                                         reinterpret_cast<const float*>(memory->data()), *device);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), HasSubstr("for gradients on the CPU only"));
}

}  // namespace
}  // namespace centroid::worker
