#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "common/device/blas.h"
#include "tests/bench/forked_ranks.h"
#include "tests/bench/sharded_bench.h"
#include "tests/bench/verdict.h"
#include "tests/support/whole_training.h"
#include "worker/node/layer_costs.h"
#include "worker/node/pipeline_replica.h"
#include "worker/parallel/stages.h"

namespace centroid::bench {
namespace {

using test::Samples;
using worker::PipelineReplica;

constexpr const char* kModel = "transformer:layers=8,width=128,heads=4,context=64,vocabulary=64";
constexpr const char* kDeepModel =
    "transformer:layers=24,width=128,heads=4,context=64,vocabulary=256";
constexpr std::uint32_t kMicroBatches = 16, kStages = 2;
constexpr std::uint64_t kSamples = 2 * kMicroBatches, kWarmUp = 1;
constexpr double kBar = 0.9, kImbalanceBar = 0.15;

/// What a rank measured in all its steps. Seconds.
struct StageTimes {
  double steps, computing, in_pipeline;
};

/// The layers' costs of a micro-batch.
std::vector<double> measure_costs(const char* spec) {
  const auto model = model_of(spec);
  Shared<double> out(worker::matrix_elements(*model).value().size());
  fork_ranks(1, Path::kTcp, [&](collective::Group&) -> Status {
    blas::set_threads(1);
    CENTROID_ASSIGN(const auto costs, worker::measure_layers(*model, kSamples / kMicroBatches));
    std::ranges::copy(worker::sums_of(costs), out.all().begin());
    return {};
  });
  return {out.all().begin(), out.all().end()};
}

worker::PipelineOptions options_of(std::uint32_t stages, std::vector<double> costs) {
  worker::PipelineOptions options;
  auto mesh = parallel::Mesh::parse("pp=" + std::to_string(stages), stages);
  if (!mesh.ok()) die(mesh.error().message());
  options.mesh = *mesh;
  options.micro_batches = kMicroBatches;
  options.sharded = sharded_options("none", 1, "sgd", 0.01);
  options.layer_costs = std::move(costs);
  return options;
}

std::vector<StageTimes> measure(const worker::PipelineOptions& options, std::uint64_t steps) {
  const auto model = model_of(kModel);
  const Samples samples(*model, kSamples, 1);
  const std::uint32_t stages = options.mesh.world();
  Shared<StageTimes> times(stages);
  fork_ranks(stages, Path::kTcp, [&](collective::Group& group) -> Status {
    blas::set_threads(1);
    CENTROID_ASSIGN(const auto replica, PipelineReplica::make(group, *model, 1, options));
    const worker::Batch batch = samples.part(0, kSamples);
    parallel::PipelineReport before;
    auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t step = 0; step < kWarmUp + steps; ++step) {
      if (step == kWarmUp) {
        before = replica->report();
        begin = std::chrono::steady_clock::now();
      }
      CENTROID_TRY(replica->step({&batch, 1}, kSamples));
    }
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    times[group.rank()] = {all.count(), (replica->report().computing - before.computing).count(),
                           (replica->report().all - before.all).count()};
    return {};
  });
  return {times.all().begin(), times.all().end()};
}

/// Stages by measured costs, beside others that were measured later.
int bench_stages() {
  const auto model = model_of(kDeepModel);
  const auto costs = measure_costs(kDeepModel), fresh = measure_costs(kDeepModel);
  int missed = 0;
  for (const std::uint32_t stages : {2u, 3u, 4u}) {
    const auto imbalance = [&](std::vector<double> by) {
      const auto split = worker::stage_layers(*model, options_of(stages, std::move(by)));
      if (!split.ok()) die(split.error().message());
      return parallel::imbalance(fresh, *split);
    };
    const double measured = imbalance(costs);
    std::printf("%s, %u stages: imbalance %.3f, by elements %.3f\n", kDeepModel, stages, measured,
                imbalance({}));
    missed += verdict("pipeline, imbalance of stages", measured, Bar::kAtMost, kImbalanceBar,
                      "of the mean");
  }
  return missed;
}

}  // namespace

int bench_pipeline(const ShardedSettings& settings) {
  std::printf("pipeline: %s, %u stages, %u micro-batches of %llu samples, 1f1b, %llu steps\n",
              kModel, kStages, kMicroBatches,
              static_cast<unsigned long long>(kSamples / kMicroBatches),
              static_cast<unsigned long long>(settings.repeats));
  const int missed = bench_stages();
  const auto costs = measure_costs(kModel);
  std::vector<double> one, both;
  StageTimes sum{};
  for (int turn = 0; turn < 3; ++turn) {
    one.push_back(measure(options_of(1, {}), settings.repeats)[0].steps);
    const auto stages = measure(options_of(kStages, costs), settings.repeats);
    double slowest = 0;
    for (const StageTimes& stage : stages) {
      slowest = std::max(slowest, stage.steps);
      sum.computing += stage.computing;
      sum.in_pipeline += stage.in_pipeline;
      std::printf("a stage computed %.3f s of %.3f s\n", stage.computing, stage.in_pipeline);
    }
    both.push_back(slowest);
  }
  const parallel::PipelineReport all{std::chrono::duration<double>(sum.computing),
                                     std::chrono::duration<double>(sum.in_pipeline)};
  const parallel::Bubble least = parallel::least_bubble(kStages, kMicroBatches);
  std::printf(
      "bubble: %.3f of the computing time, at least %.3f; %.3f of all time, at least %.3f\n",
      all.bubble().of_useful, least.of_useful, all.bubble().of_total, least.of_total);
  std::ranges::sort(one);
  std::ranges::sort(both);
  const auto steps = static_cast<double>(settings.repeats);
  std::printf("a step: one process %.3f s, %u stages %.3f s (medians of 3 turns)\n", one[1] / steps,
              kStages, both[1] / steps);
  return missed + verdict("pipeline, speed of stages over M/(M+P-1) of their cores",
                          one[1] / (kStages * both[1]) / (1 - least.of_total), Bar::kAtLeast, kBar,
                          "times");
}

}  // namespace centroid::bench
