#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/base/memory_limit.h"
#include "tests/bench/forked_ranks.h"
#include "tests/bench/sharded_bench.h"
#include "tests/bench/verdict.h"
#include "tests/support/whole_training.h"
#include "transport/collective/collectives.h"
#include "worker/node/sharded_replica.h"

namespace centroid::bench {
namespace {

using test::Samples;
using worker::ShardedReplica;

constexpr std::size_t kMostSteps = 100;
constexpr std::uint64_t kWarmUp = 2;

/// What a rank measured.
struct RankCosts {
  double seconds[kMostSteps];
  std::uint64_t bytes_out, parameters, gradients, state, resident;
};
/// The most of all ranks.
struct Costs {
  double seconds = 0;    ///< of a step, until the last rank has ended it; the median
  double bytes_out = 0;  ///< in a step
  double parameters = 0, gradients = 0, state = 0, resident = 0;
  double counted() const { return parameters + gradients + state; }
};

Costs most_of(std::span<const RankCosts> ranks, std::uint64_t steps) {
  Costs out;
  std::vector<double> seconds(steps);
  for (const RankCosts& rank : ranks) {
    for (std::size_t i = 0; i < steps; ++i) seconds[i] = std::max(seconds[i], rank.seconds[i]);
    const auto most = [](double& to, std::uint64_t value) {
      to = std::max(to, static_cast<double>(value));
    };
    most(out.bytes_out, rank.bytes_out / steps);
    most(out.parameters, rank.parameters);
    most(out.gradients, rank.gradients);
    most(out.state, rank.state);
    most(out.resident, rank.resident);
  }
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(steps / 2));
  out.seconds = seconds[steps / 2];
  return out;
}

Costs measure(const std::string& spec, std::uint32_t world, Path path, std::uint64_t batch,
              const parallel::ShardedOptions& options, std::uint64_t steps) {
  const auto model = model_of(spec);
  const Samples samples(*model, world * batch, 1);
  Shared<RankCosts> costs(world);
  fork_ranks(world, path, [&](collective::Group& group) -> Status {
    RankCosts& own = costs[group.rank()];
    CENTROID_TRY(collective::barrier(group));
    const std::uint64_t resident = peak_memory();
    CENTROID_ASSIGN(const auto replica, ShardedReplica::make(group, *model, 1, options));
    const worker::Batch part = samples.part(group.rank() * batch, batch);
    std::uint64_t bytes_out = 0;
    for (std::uint64_t step = 0; step < kWarmUp + steps; ++step) {
      if (step == kWarmUp) bytes_out = group.traffic().bytes_out;
      const auto begin = std::chrono::steady_clock::now();
      CENTROID_TRY(replica->step({&part, 1}, samples.count()));
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      if (step >= kWarmUp) own.seconds[step - kWarmUp] = time.count();
    }
    own.bytes_out = group.traffic().bytes_out - bytes_out;
    const parallel::ShardedMemory most = replica->most_memory();
    own.parameters = most.parameters;
    own.gradients = most.gradients;
    own.state = most.state;
    own.resident = peak_memory() - resident;
    return collective::barrier(group);
  });
  return most_of(costs.all(), steps);
}

std::string mlp_of(std::uint64_t width, std::uint64_t layers) {
  std::string spec = "mlp:" + std::to_string(width);
  for (std::uint64_t i = 0; i < layers; ++i) spec.append(1, '-').append(std::to_string(width));
  return spec;
}

parallel::PartCodec codec_of(const std::string& setting, const std::string& spec) {
  auto parsed = parallel::PartCodec::parse(setting, spec);
  if (!parsed.ok()) die(parsed.error().message());
  return std::move(parsed).value();
}

double megabytes(double bytes) { return bytes * 1e-6; }

constexpr std::uint64_t kLayers = 24;
constexpr std::uint32_t kWorld = 4;

std::uint64_t width_of(const ShardedSettings& settings) {
  return static_cast<std::uint64_t>(std::sqrt(static_cast<double>(settings.parameters) / kLayers));
}

}  // namespace

int bench_costs(const ShardedSettings& settings) {
  const std::uint64_t width = width_of(settings);
  const std::string spec = mlp_of(width, kLayers);
  const double unit = static_cast<double>(width * (width + 1)) * sizeof(float);
  const double plane = unit * kLayers;
  std::printf("costs: %llu layers of %llu, %.1f M parameters, Adam, %u ranks, batch %llu, TCP\n",
              static_cast<unsigned long long>(kLayers), static_cast<unsigned long long>(width),
              plane / sizeof(float) * 1e-6, kWorld,
              static_cast<unsigned long long>(settings.batch));
  std::printf("%-9s %9s %14s %11s %10s %7s %13s %12s\n", "", "step, ms", "sent / model",
              "parameters", "gradients", "state", "counted, MB", "resident, MB");
  Costs none, full;
  for (const std::string& sharding : words_of(settings.shardings)) {
    parallel::ShardedOptions options = sharded_options(sharding, kWorld, "adam", 0.001);
    options.codec = codec_of("codec", settings.codec);
    options.codec_down = codec_of("codec_down", settings.codec_down);
    const Costs costs =
        measure(spec, kWorld, Path::kTcp, settings.batch, options, settings.repeats);
    std::printf("%-9s %9.1f %14.3f %11.1f %10.1f %7.1f %13.1f %12.1f\n", sharding.c_str(),
                costs.seconds * 1e3, costs.bytes_out / plane, megabytes(costs.parameters),
                megabytes(costs.gradients), megabytes(costs.state), megabytes(costs.counted()),
                megabytes(costs.resident));
    std::fflush(stdout);
    if (sharding == "none") none = costs;
    if (sharding == "full") full = costs;
  }
  if (none.seconds == 0 || full.seconds == 0) return 0;                   // nothing to compare
  if (settings.codec != "f32" || settings.codec_down != "f32") return 0;  // bars are of f32
  const double share = double{kWorld - 1} / kWorld;
  int missed = 0;
  // The frames' headers are the rest.
  missed += verdict("full: bytes sent in a step", full.bytes_out / plane, Bar::kAtMost,
                    3 * share * 1.001, "models");
  missed += verdict("full: counted memory below that of none",
                    100 * (1 - full.counted() / none.counted()), Bar::kAtLeast, 60, "%");
  missed += verdict("full: resident memory below that of none",
                    100 * (1 - full.resident / none.resident), Bar::kAtLeast, 60, "%");
  missed += verdict("full: counted memory", megabytes(full.counted()), Bar::kAtMost,
                    megabytes(4 * plane / kWorld + 2 * unit), "MB, all planes / 4 + 2 layers");
  missed += verdict("full: time of a step", full.seconds / none.seconds, Bar::kAtMost, 1.5,
                    "times none, as the bytes");
  return missed;
}

void bench_tls(const ShardedSettings& settings) {
  constexpr int kTurns = 3;
  const std::string spec = mlp_of(width_of(settings), kLayers);
  const auto options = sharded_options("full", kWorld, "adam", 0.001);
  for (int turn = 0; turn < kTurns; ++turn) {
    double seconds[2] = {};
    for (const Path path : {Path::kTcp, Path::kTls})
      seconds[path == Path::kTls] =
          measure(spec, kWorld, path, settings.batch, options, settings.repeats).seconds;
    std::printf("tls: full, %u ranks: %.1f ms a step, without %.1f: %.2f times\n", kWorld,
                seconds[1] * 1e3, seconds[0] * 1e3, seconds[1] / seconds[0]);
    std::fflush(stdout);
  }
}

void bench_layers(const ShardedSettings& settings) {
  constexpr std::uint64_t kBatch = 2;
  for (const std::uint32_t world : {2u, 4u}) {
    for (const Path path : {Path::kTcp, Path::kSharedMemory}) {
      const Costs costs = measure(mlp_of(2048, 6), world, path, kBatch,
                                  sharded_options("full", world, "sgd", 0.01), settings.repeats);
      std::printf("6 layers of 2048, SGD, batch 2, %u ranks, %s: %.3f s a step\n", world,
                  path == Path::kTcp ? "TCP" : "shared memory", costs.seconds);
      std::fflush(stdout);
    }
  }
}

}  // namespace centroid::bench
