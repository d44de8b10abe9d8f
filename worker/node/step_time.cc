#include "worker/node/step_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "worker/node/sharded_replica.h"
#include "worker/parallel/reducing.h"

namespace centroid::worker {

using parallel::Axis;
using parallel::ParameterShape;
using parallel::ShardLayout;

namespace {

/// A worker that computes, and its link, which sends what is queued meanwhile. Seconds.
class Worker {
 public:
  explicit Worker(const Speeds& speeds) : speeds_(speeds) {}
  void compute(double seconds) {
    now_ += seconds;
    computing_ += seconds;
  }
  // The time when these bytes are sent:
  double gather(double bytes) { return send(bytes, speeds_.transfers.gather); }
  double reduce(double bytes) { return send(bytes, speeds_.transfers.reduce); }
  void wait(double time) { now_ = std::max(now_, time); }
  StepTime time() const { return {now_, computing_}; }

 private:
  double send(double bytes, double processor) {
    sent_ = std::max(sent_, now_) + bytes / speeds_.bandwidth;
    compute(bytes * processor);
    return sent_;
  }

  const Speeds& speeds_;
  double now_ = 0, sent_ = 0, computing_ = 0;
};

/// What data parallel ranks do with the parameters of a model, or of a stage.
struct Division {
  double shards = 1, replicas = 1;  ///< ranks that divide a copy, and copies
  bool gathers = false;             ///< units come before they are used
  bool has_copy = false;            ///< of another rank's shard
  double up = 0, down = 0;          ///< bytes of a gradient's and of a parameter's element
  std::size_t in_progress = 1;      ///< gradients

  Division(const parallel::ShardedOptions& options, std::uint32_t world) {
    const auto& sharding = options.sharding;
    shards = static_cast<double>(sharding.shard_ranks(0, world).size());
    replicas = static_cast<double>(sharding.replica_ranks(0, world).size());
    gathers = sharding.shards_parameters() && shards > 1;
    has_copy = options.replicas > 0 && replicas == 1;
    constexpr std::uint64_t kMany = 1 << 20;
    up = static_cast<double>(options.codec.bytes(kMany)) / kMany;
    down = static_cast<double>(options.codec_down.bytes(kMany)) / kMany;
    in_progress = parallel::Reducing::in_progress(options.codec, static_cast<std::uint32_t>(shards),
                                                  static_cast<std::uint32_t>(replicas));
  }
  double gathered(double elements) const { return down * elements * (shards - 1) / shards; }
  double scattered(double elements) const { return up * elements * (shards - 1) / shards; }
  double averaged(double elements) const {
    return up * elements / shards * (replicas - 1) / replicas;
  }
};

/// parallel::Reducing in time.
class ReducingTime {
 public:
  ReducingTime(Worker& worker, const Division& division, double copy)
      : worker_(worker), of_(division), copy_(copy) {}
  void begin(double elements) {
    entries_.push_back({elements, worker_.reduce(of_.scattered(elements)), {}});
    begin_seconds(of_.shards > 1 ? 1 : 0);
    while (entries_.size() > of_.in_progress) end_first();
  }
  void finish() {
    begin_seconds(0);
    while (!entries_.empty()) end_first();
  }

 private:
  struct Entry {
    double elements, scattered;
    std::optional<double> reduced;
  };
  void begin_second(Entry& entry) {
    worker_.wait(entry.scattered);
    if (entry.reduced) return;
    entry.reduced = entry.scattered;
    if (of_.replicas == 1) return;
    worker_.reduce(of_.averaged(entry.elements));
    entry.reduced = worker_.gather(of_.averaged(entry.elements));
  }
  void begin_seconds(std::size_t without) {
    for (std::size_t i = 0; of_.replicas > 1 && i + without < entries_.size(); ++i)
      begin_second(entries_[i]);
  }
  void end_first() {
    begin_second(entries_.front());
    worker_.wait(*entries_.front().reduced);
    if (of_.shards > 1) worker_.compute(copy_ * entries_.front().elements / of_.shards);
    entries_.pop_front();
  }

  Worker& worker_;
  const Division& of_;
  const double copy_;
  std::deque<Entry> entries_;
};

double elements_of(const ShardLayout& layout, std::size_t unit) {
  return static_cast<double>(layout.units()[unit].elements.count);
}

/// What follows the last reduction.
void end_step(Worker& worker, const Division& of, double elements, double update) {
  const double shard = elements / of.shards;
  if (of.has_copy) worker.wait(worker.gather(sizeof(float) * shard));
  worker.compute(update * shard * (of.has_copy ? 2 : 1));
  if (!of.gathers) worker.wait(worker.gather(of.gathered(elements)));  // updated parameters
}

/// The passes of a step as ShardedReplica::run makes them.
void run_passes(Worker& worker, const Division& of, const std::vector<ShardedPass>& plan,
                const ShardLayout& layout, const std::vector<double>& seconds, double copy) {
  ReducingTime reducing(worker, of, copy);
  std::vector<std::optional<double>> here(layout.units().size());  // when each unit has come
  const auto fetch = [&](std::size_t unit) {
    if (!of.gathers || here[unit]) return;
    worker.compute(copy * elements_of(layout, unit) / of.shards);
    here[unit] = worker.gather(of.gathered(elements_of(layout, unit)));
  };
  for (std::size_t i = 0; i < plan.size(); ++i) {
    for (const std::size_t unit : plan[i].reads) {
      fetch(unit);
      if (here[unit]) worker.wait(*here[unit]);
    }
    for (const std::size_t unit : plan[i].fetches) fetch(unit);
    worker.compute(seconds[i]);
    for (const std::size_t unit : plan[i].releases) here[unit].reset();
    for (const std::size_t unit : plan[i].completes) reducing.begin(elements_of(layout, unit));
  }
  reducing.finish();
}

/// Of each stage, for the virtual time of a schedule.
std::vector<parallel::StageCost> stage_costs(const std::vector<parallel::Range>& stages,
                                             const Speeds& speeds, double samples) {
  constexpr double kNanoseconds = 1e9;
  const double factor = kNanoseconds * samples / static_cast<double>(speeds.samples);
  std::vector<parallel::StageCost> out;
  for (const parallel::Range& stage : stages) {
    double forward = 0, backward = 0;
    for (std::uint64_t layer = stage.begin; layer < stage.end(); ++layer) {
      const LayerCost& cost = speeds.layers[layer];
      forward += factor * cost.forward;
      backward += factor * cost.backward + kNanoseconds * cost.accumulate;
    }
    out.push_back({static_cast<std::uint64_t>(forward), static_cast<std::uint64_t>(backward)});
  }
  return out;
}

/// Seconds of the schedule alone. The links between stages may be slower than the stages.
Result<double> schedule_time(const Model& model, const PipelineOptions& options,
                             const std::vector<parallel::Range>& stages, double samples,
                             const Speeds& speeds) {
  constexpr double kNanoseconds = 1e9;
  const auto count = static_cast<std::uint32_t>(stages.size());
  CENTROID_ASSIGN(const auto schedule,
                  parallel::make_schedule(options.schedule, count, options.micro_batches));
  const std::unique_ptr<Model> own = model.clone();
  double slowest = 0;  // of the transfers of a micro-batch between two stages
  std::vector<double> sent(count);
  for (std::uint32_t i = 1; i < count; ++i) {
    const auto border = own->layered()->border(static_cast<std::uint32_t>(stages[i].begin));
    const double seconds = sizeof(float) * samples * static_cast<double>(border) / speeds.bandwidth;
    slowest = std::max(slowest, seconds);
    sent[i - 1] += options.micro_batches * seconds;  // activations
    sent[i] += options.micro_batches * seconds;      // their gradients
  }
  const auto costs = stage_costs(stages, speeds, samples);
  CENTROID_ASSIGN(
      const auto timeline,
      parallel::evaluate(schedule, costs, static_cast<std::uint64_t>(kNanoseconds * slowest)));
  return std::max(static_cast<double>(timeline.length) / kNanoseconds,
                  *std::ranges::max_element(sent));
}

}  // namespace

Result<StepTime> step_time(const Model& model, const parallel::ShardedOptions& options,
                           std::uint32_t world, std::uint64_t samples, const Speeds& speeds) {
  CENTROID_ASSIGN(auto shapes, parameter_shapes(model));
  const Division of(options, world);
  CENTROID_ASSIGN(const ShardLayout layout,
                  ShardLayout::make(std::move(shapes), static_cast<std::uint32_t>(of.shards),
                                    options.least_elements));
  const std::unique_ptr<Model> own = model.clone();
  const auto passes = own->layered()->passes(true);
  const double factor = static_cast<double>(samples) / static_cast<double>(speeds.samples);
  std::vector<double> seconds(passes.size());
  for (std::size_t layer = 0; layer < speeds.layers.size(); ++layer) {
    seconds[layer] += factor * speeds.layers[layer].forward;
    seconds[passes.size() - 1 - layer] += factor * speeds.layers[layer].backward;
  }
  Worker worker(speeds);
  run_passes(worker, of, plan_passes(passes, own->layered()->layers(), layout), layout, seconds,
             speeds.copy);
  end_step(worker, of, static_cast<double>(layout.elements()), speeds.update);
  return worker.time();
}

Result<StepTime> step_time(const Model& model, const PipelineOptions& options,
                           std::uint64_t samples, const Speeds& speeds) {
  CENTROID_ASSIGN(const auto shapes, parameter_shapes(model));
  CENTROID_ASSIGN(const auto stages, stage_layers(model, options));
  const double of_part = static_cast<double>(samples) / options.micro_batches;
  CENTROID_ASSIGN(const double schedule, schedule_time(model, options, stages, of_part, speeds));
  const Division of(options.sharded, options.mesh.size(Axis::kData));
  StepTime most;
  const auto costs = stage_costs(stages, speeds, of_part);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    double elements = 0;
    for (const ParameterShape& shape : shapes)
      if (shape.layer >= stages[i].begin && shape.layer < stages[i].end())
        elements += static_cast<double>(shape.elements);
    // The stage comes before the schedule, and its gradient is reduced after it.
    Worker worker(speeds);
    if (of.gathers) worker.compute(speeds.copy * elements / of.shards);
    if (of.gathers) worker.wait(worker.gather(of.gathered(elements)));
    worker.compute(speeds.fill * elements);
    ReducingTime reducing(worker, of, speeds.copy);
    reducing.begin(elements);
    reducing.finish();
    end_step(worker, of, elements, speeds.update);
    const StepTime around = worker.time();
    const double computing =
        1e-9 * options.micro_batches * static_cast<double>(costs[i].forward + costs[i].backward);
    most.all = std::max(most.all, around.all);
    most.computing = std::max(most.computing, around.computing + computing);
  }
  most.all += schedule;
  return most;
}

}  // namespace centroid::worker
