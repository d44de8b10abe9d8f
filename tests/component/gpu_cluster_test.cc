// Workers of several GPUs, which add through NCCL, in clusters within one process: the GPUs of
// tests/support/late_device.h and the stand-in of NCCL, against the same workers on CPUs.

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/cuda/device_residual.h"
#include "tests/support/in_process.h"
#include "tests/support/late_device.h"
#include "tests/support/late_model.h"
#include "tests/support/nccl_stand_in.h"
#include "tests/support/simt.h"
#include "tests/support/trained.h"

namespace centroid::test {
namespace {

using server::ServerConfig;
using testing::HasSubstr;

constexpr const char *kModel = "mlp:12-16-5,gelu", *kBatchNorm = "mlp:12-16-5,gelu,norm=batch";

/// A policy of the coordinator. Where who has how much does not depend on the time, the parameters
/// are those of CPUs.
struct Way {
  const char* name;
  const char* policy = "bsp";
  const char* cadence = "off";
  const char* ratios = "";
  std::uint64_t local_steps = 1;
  const char* exchange = "star";
  const char* codec = "f32";
  const char* model = kModel;
  bool is_joint() const { return policy == std::string("bsp"); }
  bool is_repeatable() const { return is_joint() && cadence != std::string("tuned"); }
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

class GpuWorkers : public testing::Test, protected InProcess {
 protected:
  void SetUp() override {
    simt::use_seed(5);
    simt::use_stream_seed(5);
  }
  ServerConfig config(const Way& way) {
    ServerConfig c = config_of_own();
    c.run_id = "gpus";
    c.timeouts.lease = std::chrono::seconds(60);
    c.workers.min = 2;
    c.goal.epochs = 4;
    c.policy = way.policy;
    c.cadence.mode = way.cadence;
    c.cadence.ratios = way.ratios;
    c.local.count = way.local_steps;
    c.exchange = way.exchange;
    if (way.local_steps > 1)
      c.local.outer = "average";
    else
      c.optimizer.learning_rate = 0.1;
    return c;
  }
  WorkerSpec spec(const std::string& name, const std::string& devices, const Way& way) {
    const bool on_gpus = devices.starts_with("cuda");
    worker::GroupOptions options;
    options.devices = devices;
    options.nccl = NCCL_STAND_IN;
    options.bucket_bytes = 400;  // several
    options.batch = 12;
    options.load_ahead = 3;
    const auto custom = late_model(way.model, options);
    custom->make_group = [make = custom->make_group, on_gpus] {
      auto group = make();
      if (on_gpus) CENTROID_CHECK(group->resident() != nullptr);  // by NCCL
      return group;
    };
    if (on_gpus)
      custom->residual = [](worker::ReplicaGroup& group, const std::string& codec,
                            const ChunkPlan& plan) -> Result<std::unique_ptr<DeviceResidual>> {
        const auto at = group.device_gradient();
        CENTROID_ASSIGN(auto residual, make_device_residual(codec, plan, at.gradient, *at.device));
        group.keep_gradient_on_device();
        return residual;
      };
    WorkerSpec out;
    out.name = name;
    out.model = way.model;
    out.batch = 12;
    out.inner.learning_rate = 0.05;
    out.custom = custom;
    out.codec = way.codec;
    out.exchange = way.exchange;
    out.peers = transports();
    return out;
  }
  /// `observe(worker, rounds)`: before the round after so many.
  std::vector<WorkerOutcome> train(
      const std::vector<WorkerSpec>& specs, TestServer& server, Trained& trained,
      const std::function<void(std::size_t worker, std::uint64_t rounds)>& observe = {}) {
    std::vector<WorkerOutcome> outcomes(specs.size());
    std::vector<std::thread> threads;
    const bool is_asp = server.view().terms.policy == "asp";
    for (std::size_t i = 0; i < specs.size(); ++i)
      threads.emplace_back([&, i] {
        std::uint64_t rounds = 0;
        const auto seen = [&](const worker::Share& share, const worker::StepStats&,
                              const worker::RoundReport& report, const worker::TrainingSummary&) {
          // By asp each share counts once, whatever its round was called.
          const bool counts = is_asp || report.outcome == worker::RoundReport::Outcome::kCommitted;
          if (counts) trained.note(share, data_.train.samples, specs[i].name);
          if (observe) observe(i, ++rounds);
        };
        outcomes[i] = run_worker(specs[i], data_, server.endpoint(), transports(), seen);
      });
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  StandIn nccl_;
  worker::DataSplit data_ = make_blobs(240, 12, 5, 3);
};

class GpuCluster : public GpuWorkers, public testing::WithParamInterface<Way> {};

TEST_P(GpuCluster, TrainsAsTheCpusDo) {
  const Way way = GetParam();
  std::vector<std::vector<float>> params;
  for (const bool on_gpus : {false, true}) {
    SCOPED_TRACE(on_gpus ? "GPUs" : "CPUs");
    TestServer server(config(way), transports());
    const std::vector<WorkerSpec> specs{spec("a", on_gpus ? "cuda:0,cuda:1" : "cpu:0,cpu:1", way),
                                        spec("b", on_gpus ? "cuda:2,cuda:3" : "cpu:2,cpu:3", way)};
    Trained trained;
    const auto outcomes = train(specs, server, trained);
    const Status ended = server.join();
    ASSERT_TRUE(ended.ok()) << ended.error().to_string();
    for (const WorkerOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.error().to_string();
      EXPECT_EQ(outcome.summary.skipped + outcome.summary.lost, 0U);
      if (way.is_joint()) {
        EXPECT_EQ(outcome.params, outcomes[0].params);
        EXPECT_EQ(outcome.summary.late, 0U);
      }
    }
    expect_each_once(trained, 4, !way.is_joint());
    const auto view = server.view();
    if (way.is_repeatable()) {
      // One average a batch, or so many local steps: the initial parameters are version 1.
      EXPECT_EQ(view.version, outcomes[0].summary.rounds + 1);
      if (way.ratios == std::string()) {
        EXPECT_EQ(outcomes[0].summary.rounds, 4 * 240 / (24 * way.local_steps));
      }
    }
    EXPECT_GT(view.test.accuracy, 0.5);  // of five classes
    params.push_back(outcomes[0].params);
  }
  if (!way.is_repeatable()) return;
  // A number that one side sends and the other just not stays in one residual only.
  const double bound = way.codec == std::string("f32") ? 1e-4 : 1e-2;
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < params[0].size(); ++i) {
    largest = std::max(largest, std::abs(double{params[0][i]}));
    worst = std::max(worst, std::abs(double{params[0][i]} - double{params[1][i]}));
  }
  EXPECT_LE(worst, bound * largest);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, GpuCluster,
    testing::Values(
        Way{.name = "sync"}, Way{.name = "sync_ring", .exchange = "ring"},
        Way{.name = "sync_topk", .codec = "topk:0.2"}, Way{.name = "sync_local", .local_steps = 5},
        Way{.name = "sync_norm", .model = kBatchNorm},
        Way{.name = "sync_ring_norm", .exchange = "ring", .model = kBatchNorm},
        Way{.name = "sync_local_norm", .local_steps = 5, .model = kBatchNorm},
        Way{.name = "speed", .cadence = "speed", .ratios = "2,1"},
        Way{.name = "speed_local", .cadence = "speed", .ratios = "2,1", .local_steps = 5},
        Way{.name = "cadence_local", .cadence = "tuned", .local_steps = 5},
        Way{.name = "async", .policy = "asp"},
        Way{.name = "async_local", .policy = "asp", .local_steps = 5}),
    [](const auto& way) { return std::string(way.param.name); });

class GpuClusterFailure : public GpuCluster {};

/// One worker's NCCL fails in the middle: it goes, and the others train what it had.
TEST_P(GpuClusterFailure, TheOthersTrainTheShareOfAWorkerWhoseAdditionFailed) {
  const Way way = GetParam();
  ServerConfig c = config(way);
  c.workers.min = 3;  // nobody trains all of it before another has joined
  TestServer server(c, transports());
  const std::vector<WorkerSpec> specs{spec("a", "cuda:0,cuda:1", way),
                                      spec("b", "cuda:2,cuda:3", way), spec("c", "cpu:0", way)};
  Trained trained;
  const auto outcomes =
      train(specs, server, trained, [&](std::size_t worker, std::uint64_t rounds) {
        if (worker == 0 && rounds == 2) nccl_.set("fail_call", 0, 1);
      });
  const Status ended = server.join();
  ASSERT_TRUE(ended.ok()) << ended.error().to_string();
  ASSERT_FALSE(outcomes[0].status.ok());
  EXPECT_THAT(outcomes[0].status.error().message(), HasSubstr("unhandled cuda error"));
  for (const std::size_t other : {1, 2}) {
    ASSERT_TRUE(outcomes[other].status.ok()) << outcomes[other].status.error().to_string();
    EXPECT_EQ(outcomes[other].params, outcomes[1].params);
  }
  EXPECT_EQ(trained.shares["a"].size(), 2U);
  expect_each_once(trained, 4);
  EXPECT_GT(server.view().test.accuracy, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Policies, GpuClusterFailure,
                         testing::Values(Way{.name = "sync"},
                                         Way{.name = "sync_local", .local_steps = 5}),
                         [](const auto& way) { return std::string(way.param.name); });

/// What a GPU has selected, until it fails.
class FailingResidual final : public DeviceResidual {
 public:
  FailingResidual(std::unique_ptr<DeviceResidual> residual, int until)
      : residual_(std::move(residual)), until_(until) {}
  Status begin(std::uint64_t position, std::uint64_t elements, const std::string& name,
               KeepRatio ratio) override {
    if (--until_ < 0) return Error(ErrorCode::kInternal, "an illegal memory access");
    return residual_->begin(position, elements, name, ratio);
  }
  Result<bool> done() override { return residual_->done(); }
  Result<Sent> encode(std::uint64_t first, std::uint64_t elements, MutableBytes out) override {
    return residual_->encode(first, elements, out);
  }
  Status keep(std::uint64_t position, std::uint64_t elements) override {
    return residual_->keep(position, elements);
  }
  Status undo(std::uint64_t position, std::uint64_t elements) override {
    return residual_->undo(position, elements);
  }
  Status read_copies(std::span<float> residual, std::span<float> momentum) override {
    return residual_->read_copies(residual, momentum);
  }
  Status read(std::span<float> residual, std::span<float> momentum) override {
    return residual_->read(residual, momentum);
  }
  Status write(std::span<const float> residual, std::span<const float> momentum) override {
    return residual_->write(residual, momentum);
  }

 private:
  std::unique_ptr<DeviceResidual> residual_;
  int until_;
};

/// A GPU that fails in the codec is no gradient that is not finite: its worker ends and says why,
/// the job goes on with the others.
TEST_F(GpuWorkers, AWorkerWhoseGpuFailsEndsAndNotTheJob) {
  const Way way{.name = "topk", .codec = "topk:0.2"};
  ServerConfig c = config(way);
  c.workers.min = 3;  // nobody trains all of it before another has joined
  TestServer server(c, transports());
  std::vector<WorkerSpec> specs{spec("a", "cuda:0,cuda:1", way), spec("b", "cpu:0", way),
                                spec("c", "cpu:0", way)};
  auto failing = std::make_shared<CustomModel>(*specs[0].custom);
  failing->residual = [make = failing->residual](
                          worker::ReplicaGroup& group, const std::string& codec,
                          const ChunkPlan& plan) -> Result<std::unique_ptr<DeviceResidual>> {
    CENTROID_ASSIGN(auto residual, make(group, codec, plan));
    return std::unique_ptr<DeviceResidual>(new FailingResidual(std::move(residual), 10));
  };
  specs[0].custom = failing;
  Trained trained;
  const auto outcomes = train(specs, server, trained);
  const Status ended = server.join();
  ASSERT_TRUE(ended.ok()) << ended.error().to_string();
  ASSERT_FALSE(outcomes[0].status.ok());
  EXPECT_EQ(outcomes[0].status.error().code(), ErrorCode::kInternal);  // status 1: try again
  EXPECT_THAT(outcomes[0].status.error().message(), HasSubstr("an illegal memory access"));
  EXPECT_THAT(outcomes[0].status.error().message(), HasSubstr("this worker cannot go on"));
  for (const std::size_t other : {1, 2})
    ASSERT_TRUE(outcomes[other].status.ok()) << outcomes[other].status.error().to_string();
  expect_each_once(trained, 4);
}

}  // namespace
}  // namespace centroid::test
