#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "tests/bench/forked_ranks.h"
#include "tests/bench/sharded_bench.h"
#include "tests/bench/verdict.h"
#include "tests/support/whole_training.h"
#include "worker/node/pipeline_replica.h"
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
constexpr Rule kRules[] = {{"sgd", 0.1, 1e-5}, {"adam", 0.003, 1e-3}};
constexpr Rule kGradientRule{"sgd", kGradientRate, 0};
constexpr std::uint32_t kMicroBatches = 4, kMostStages = 4;

/// How ranks divide the model.
struct Way {
  parallel::Mesh mesh;
  std::string sharding;
  parallel::Schedule schedule = parallel::Schedule::kOneForwardOneBack;  ///< of stages

  bool has_stages() const { return mesh.size(parallel::Axis::kPipeline) > 1; }
  std::string text() const {
    std::string out = std::to_string(mesh.world()) + " ranks, " + sharding;
    if (!has_stages()) return out;
    const auto size = [&](parallel::Axis axis) { return std::to_string(mesh.size(axis)); };
    return out + ", dp=" + size(parallel::Axis::kData) + ",pp=" + size(parallel::Axis::kPipeline) +
           " " + std::string(to_string(schedule));
  }
};

Result<std::unique_ptr<worker::DividedReplica>> make_replica(const collective::Group& group,
                                                             const worker::Model& model,
                                                             const Way& way, const Rule& rule) {
  parallel::ShardedOptions options =
      sharded_options(way.sharding, way.mesh.size(parallel::Axis::kData), rule.name, rule.rate);
  options.least_elements = 1;  // each layer is a unit
  std::unique_ptr<worker::DividedReplica> out;
  if (way.has_stages()) {
    const worker::PipelineOptions staged{way.mesh, way.schedule, kMicroBatches, options, {}};
    CENTROID_ASSIGN(out, worker::PipelineReplica::make(group, model, kSeed, staged));
  } else {
    CENTROID_ASSIGN(out, ShardedReplica::make(group, model, kSeed, options));
  }
  return out;
}

/// Train on forked ranks; `losses`: by rank and step. `values`: rank 0's parameters at the end.
void train(const Way& way, const Rule& rule, std::uint64_t steps, std::span<double> losses,
           std::span<float> values) {
  const auto model = model_of(kModel);
  fork_ranks(way.mesh.world(), Path::kTcp, [&](collective::Group& group) -> Status {
    const std::uint32_t rank = group.rank();
    CENTROID_ASSIGN(const auto replica, make_replica(group, *model, way, rule));
    const parallel::Range own =
        parallel::shard_of(kSamples, replica->data_world(), replica->data_rank());
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
  if (world == 1) return {"none"};
  std::vector<std::string> out = {"full", "grad", "none"};
  for (std::uint32_t group = 2; group < world; ++group)
    if (world % group == 0) out.push_back("hybrid:" + std::to_string(group));
  return out;
}

/// With and without stages, in both schedules.
std::vector<Way> ways_of(std::uint32_t world) {
  std::vector<Way> out;
  for (std::uint32_t stages = 1; stages <= std::min(world, kMostStages); ++stages) {
    if (world % stages != 0) continue;
    const std::uint32_t ranks = world / stages;
    const auto mesh = parallel::Mesh::parse(
        "dp=" + std::to_string(ranks) + ",pp=" + std::to_string(stages), world);
    if (!mesh.ok()) die(mesh.error().message());
    for (const std::string& sharding : shardings_of(ranks)) {
      out.push_back({*mesh, sharding});
      if (stages > 1) out.push_back({*mesh, sharding, parallel::Schedule::kGPipe});
    }
  }
  return out;
}

/// Whether a second run has the bits of the first.
int bench_bits(const Way& way, const Rule& rule, std::span<const double> losses,
               std::span<const float> values) {
  const std::size_t steps = losses.size() / way.mesh.world();
  Shared<double> again(losses.size());
  Shared<float> other(values.size());
  train(way, rule, steps, again.all(), other.all());
  const bool is_same =
      std::ranges::equal(losses, again.all()) && std::ranges::equal(values, other.all());
  return verdict((way.text() + ": other bits in a second run").c_str(), is_same ? 0 : 1,
                 Bar::kAtMost, 0.5, "runs");
}

int bench_way(const Way& way, std::uint64_t steps, const std::vector<Reference>& references) {
  const std::uint32_t world = way.mesh.world();
  const std::string what = way.text() + ": ";
  Shared<float> values(references[0].values.size());
  int missed = 0;
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    const Rule& rule = kRules[i];
    const Reference& should = references[i];
    Shared<double> losses(world * steps);
    train(way, rule, steps, losses.all(), values.all());
    std::printf("%s%s, %zu steps, loss %.3f to %.3f, parameters differ by %.1e\n", what.c_str(),
                rule.name, should.losses.size(), should.losses.front() / kTargets,
                should.losses.back() / kTargets, distance(values.all(), should.values));
    missed += verdict((what + rule.name + ", losses").c_str(),
                      difference(should, losses.all(), world) / kMillionth, Bar::kAtMost,
                      rule.bar / kMillionth, "millionths");
    if (i == 0) missed += bench_bits(way, rule, losses.all(), values.all());
  }
  Shared<double> loss(world);
  train(way, kGradientRule, 1, loss.all(), values.all());
  missed += verdict((what + "first gradient").c_str(),
                    distance(values.all(), references.back().values) / kMillionth, Bar::kAtMost, 1,
                    "millionths");
  std::fflush(stdout);
  return missed;
}

}  // namespace

int bench_equality(const ShardedSettings& settings) {
  std::printf("equality: %s, %llu samples a step, beside one process\n", kModel,
              static_cast<unsigned long long>(kSamples));
  std::vector<Reference> references;
  for (const Rule& rule : kRules) references.push_back(reference(rule, settings.steps));
  references.push_back(reference(kGradientRule, 1));
  int missed = 0;
  for (const std::string& world : words_of(settings.ranks)) {
    const int number = std::atoi(world.c_str());
    if (number < 2 || number > 64) die("ranks: '" + world + "' is not a number from 2 to 64");
    for (const Way& way : ways_of(static_cast<std::uint32_t>(number)))
      missed += bench_way(way, settings.steps, references);
  }
  return missed;
}

}  // namespace centroid::bench
