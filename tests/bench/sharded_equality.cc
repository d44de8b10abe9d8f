#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/bench/forked_ranks.h"
#include "tests/bench/sharded_bench.h"
#include "tests/bench/verdict.h"
#include "tests/support/whole_training.h"
#include "worker/node/sharded_replica.h"

namespace centroid::bench {
namespace {

using test::Samples;
using test::WholeTraining;
using worker::ShardedReplica;

constexpr const char* kModel =
    "transformer:layers=4,width=64,heads=4,context=32,vocabulary=64,mlp=swiglu";
constexpr std::uint64_t kSeed = 11;
constexpr std::uint64_t kSamples = 24, kTargets = 24 * 32;  // of a step, of all ranks
constexpr double kMillionth = 1e-6;
/// With this rate a step of SGD moves each parameter by far more than its value, so the difference
/// is the gradient to the last bits.
constexpr double kGradientRate = 1 << 20;

struct Rule {
  const char* name;
  double rate, bar;  ///< bar: relative difference of losses
};

/// Train on forked ranks; `losses`: by rank and step. `values`: rank 0's parameters at the end.
void train(const std::string& sharding, std::uint32_t world, const Rule& rule, std::uint64_t steps,
           std::span<double> losses, std::span<float> values) {
  const auto model = model_of(kModel);
  parallel::ShardedOptions options = sharded_options(sharding, world, rule.name, rule.rate);
  options.least_elements = 1;  // each layer is a unit
  fork_ranks(world, Path::kTcp, [&](collective::Group& group) -> Status {
    const std::uint32_t rank = group.rank();
    CENTROID_ASSIGN(const auto replica, ShardedReplica::make(group, *model, kSeed, options));
    const parallel::Range own = parallel::shard_of(kSamples, world, rank);
    for (std::uint64_t step = 0; step < steps; ++step) {
      const Samples samples(*model, kSamples, step);
      const worker::Batch batch = samples.part(own.begin, own.count);
      CENTROID_ASSIGN(const auto done, replica->step({&batch, 1}, kSamples));
      losses[rank * steps + step] = done.result.loss_sum;
    }
    std::size_t at = 0;
    return replica->visit([&](TensorId, std::span<const float> of) -> Status {
      if (rank == 0) std::ranges::copy(of, values.begin() + static_cast<std::ptrdiff_t>(at));
      at += of.size();
      return {};
    });
  });
}

struct Reference {
  std::vector<double> losses;
  std::vector<float> values;
};

Reference reference(const Rule& rule, std::uint64_t steps) {
  const auto model = model_of(kModel);
  WholeTraining whole(*model, kSeed, sharded_options("none", 1, rule.name, rule.rate).optimizer);
  Reference out;
  for (std::uint64_t step = 0; step < steps; ++step)
    out.losses.push_back(whole.step(Samples(*model, kSamples, step).part(0, kSamples)).loss_sum);
  out.values.assign(whole.params().begin(), whole.params().end());
  return out;
}

/// The largest relative difference of a step's loss.
double difference(const Reference& should, std::span<const double> losses, std::uint32_t world) {
  const std::size_t steps = should.losses.size();
  double most = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    double loss = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) loss += losses[rank * steps + step];
    most = std::max(most, std::abs(loss - should.losses[step]) / should.losses[step]);
  }
  return most;
}

/// Euclidean, relative.
double distance(std::span<const float> is, std::span<const float> should) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < should.size(); ++i) {
    difference += std::pow(double{is[i]} - should[i], 2);
    norm += std::pow(double{should[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

std::vector<std::string> shardings_of(std::uint32_t world) {
  std::vector<std::string> out = {"full", "grad", "none"};
  for (std::uint32_t group = 2; group < world; ++group)
    if (world % group == 0) out.push_back("hybrid:" + std::to_string(group));
  return out;
}

int bench_world(std::uint32_t world, std::uint64_t steps) {
  const Rule rules[] = {{"sgd", 0.1, 1e-5}, {"adam", 0.003, 1e-3}};
  const Rule gradient{"sgd", kGradientRate, 0};
  const Reference first = reference(gradient, 1);
  Shared<float> values(first.values.size());
  int missed = 0;
  for (const std::string& sharding : shardings_of(world)) {
    const std::string what = std::to_string(world) + " ranks, " + sharding + ": ";
    for (const Rule& rule : rules) {
      const Reference should = reference(rule, steps);
      Shared<double> losses(world * steps);
      train(sharding, world, rule, steps, losses.all(), values.all());
      std::printf("%s%s, %zu steps, loss %.3f to %.3f, parameters differ by %.1e\n", what.c_str(),
                  rule.name, should.losses.size(), should.losses.front() / kTargets,
                  should.losses.back() / kTargets, distance(values.all(), should.values));
      missed += verdict((what + rule.name + ", losses").c_str(),
                        difference(should, losses.all(), world) / kMillionth, Bar::kAtMost,
                        rule.bar / kMillionth, "millionths");
    }
    Shared<double> loss(world);
    train(sharding, world, gradient, 1, loss.all(), values.all());
    missed +=
        verdict((what + "first gradient").c_str(),
                distance(values.all(), first.values) / kMillionth, Bar::kAtMost, 1, "millionths");
    std::fflush(stdout);
  }
  return missed;
}

}  // namespace

int bench_equality(const ShardedSettings& settings) {
  std::printf("equality: %s, %llu samples a step, beside one process\n", kModel,
              static_cast<unsigned long long>(kSamples));
  int missed = 0;
  for (const std::string& world : words_of(settings.ranks)) {
    const int number = std::atoi(world.c_str());
    if (number < 1 || number > 64) die("ranks: '" + world + "' is not a number from 1 to 64");
    missed += bench_world(static_cast<std::uint32_t>(number), settings.steps);
  }
  return missed;
}

}  // namespace centroid::bench
