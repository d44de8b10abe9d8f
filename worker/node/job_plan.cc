#include "worker/node/job_plan.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "common/optim/optimizer.h"
#include "worker/node/job_memory.h"
#include "worker/node/sharded_replica.h"

namespace centroid::worker {

namespace {

using parallel::ShardedMemory;
using parallel::ShardedOptions;
using parallel::Sharding;

/// Bytes on the wire for each byte of a tensor: the headers of Ethernet, IP and TCP with timestamps
/// in packets of 1500 bytes, with preamble, checksum and gap.
constexpr double kWire = 1538.0 / 1448;
/// As worker/config.h without --micro-batches.
constexpr std::uint64_t kMicroBatchesOfStage = 4;

/// Of some runs, the fastest.
template <class Run>
double fastest(const Run& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  return best;
}

/// Seconds per parameter of a step of the optimizer, of a copy and of a 0, in more memory than
/// processors cache.
Status measure_parameters(const PlanQuestion& question, Speeds& speeds) {
  constexpr std::uint64_t kElements = 8 << 20;
  CENTROID_ASSIGN(const auto optimizer, make_optimizer(question.optimizer));
  std::vector<float> values(kElements, 1), gradient(kElements, 0.1F);
  std::vector<std::vector<float>> state(optimizer->slots(), std::vector<float>(kElements));
  const std::vector<std::span<float>> slots(state.begin(), state.end());
  speeds.update = fastest([&] { optimizer->step(1, values, gradient, slots, values); }) / kElements;
  speeds.copy = fastest([&] { std::ranges::copy(gradient, values.begin()); }) / kElements;
  speeds.fill = fastest([&] { std::ranges::fill(gradient, 0.0F); }) / kElements;
  if (usable_cores() > 1) return {};  // one of them computes, another one transfers
  CENTROID_ASSIGN(speeds.transfers, measure_transfers());
  return {};
}

/// A data set of the model's shape, without samples.
DataSplit no_data(const Model& model) {
  DataSplit out;
  for (Dataset* const one : {&out.train, &out.test}) {
    one->features = model.features();
    one->classes = model.classes();
    one->vocabulary = model.vocabulary();
    if (model.targets() == 1) one->y.push_back(0);
  }
  return out;
}

class Planner {
 public:
  Planner(const Model& model, const PlanQuestion& question, const ComputingSpeed& speed)
      : model_(model), question_(question), speed_(speed), data_(no_data(model)) {
    speed_.batch.bandwidth = speed_.micro_batch.bandwidth = question.bandwidth / kWire;
  }

  Status add_sharding(const std::string& text) {
    const std::uint32_t world = question_.workers;
    CENTROID_ASSIGN(ShardedOptions options, options_of(text, world));
    options.replicas = world > 2 ? 1 : 0;
    PlanRow row;
    row.flags = "--sharding " + text;
    row.batch = question_.batch;
    CENTROID_ASSIGN(row.memory, job_memory(model_, options, world, row.batch, data_));
    CENTROID_ASSIGN(row.time, step_time(model_, options, world, row.batch, speed_.batch));
    add(std::move(row));
    return {};
  }

  Status add_stages(std::uint32_t stages, const std::string& sharding) {
    const std::uint32_t ranks = question_.workers / stages;
    PipelineOptions options;
    const std::string mesh = "dp=" + std::to_string(ranks) + ",pp=" + std::to_string(stages);
    CENTROID_ASSIGN(options.mesh, parallel::Mesh::parse(mesh, question_.workers));
    CENTROID_ASSIGN(options.sharded, options_of(sharding, ranks));
    options.sharded.replicas = ranks > 2 ? 1 : 0;
    options.layer_costs = sums_of(speed_.micro_batch.layers);
    PlanRow row;
    row.flags = "--parallel " + mesh + " --sharding " + sharding;
    row.batch = question_.batch * stages;
    row.micro_batches = std::min(kMicroBatchesOfStage * stages, row.batch);
    options.micro_batches = static_cast<std::uint32_t>(row.micro_batches);
    if (!stage_layers(model_, options).ok()) return {};
    for (std::uint32_t rank = 0; rank < question_.workers; rank += ranks) {
      CENTROID_ASSIGN(const ShardedMemory need,
                      job_memory(model_, options, rank, row.batch, data_));
      if (need.total() > row.memory.total()) row.memory = need;
    }
    CENTROID_ASSIGN(row.time, step_time(model_, options, row.batch, speed_.micro_batch));
    add(std::move(row));
    return {};
  }

  std::vector<PlanRow> take() { return std::move(rows_); }

 private:
  Result<ShardedOptions> options_of(const std::string& sharding, std::uint32_t ranks) const {
    ShardedOptions options;
    CENTROID_ASSIGN(options.sharding, Sharding::parse(sharding, ranks));
    options.optimizer = question_.optimizer;
    options.codec = question_.codec;
    options.codec_down = question_.codec_down;
    return options;
  }
  void add(PlanRow row) {
    row.fits = row.memory.total() <= question_.memory;
    rows_.push_back(std::move(row));
  }

  const Model& model_;
  const PlanQuestion& question_;
  ComputingSpeed speed_;
  const DataSplit data_;
  std::vector<PlanRow> rows_;
};

}  // namespace

std::uint64_t micro_batch_of(const PlanQuestion& question) {
  return (question.batch + kMicroBatchesOfStage - 1) / kMicroBatchesOfStage;
}

Result<ComputingSpeed> measure_speed(const Model& model, const PlanQuestion& question,
                                     std::uint64_t limit) {
  CENTROID_ASSIGN(const std::uint64_t need, measuring_bytes(model, question.batch));
  if (need > limit)
    return Error(ErrorCode::kFailedPrecondition,
                 "measuring a layer needs " + std::to_string(need) + " bytes, this machine has " +
                     std::to_string(limit) +
                     ": give the time of a step with --step-time, or lower --batch");
  ComputingSpeed out;
  out.batch.samples = question.batch;
  CENTROID_ASSIGN(out.batch.layers, measure_layers(model, question.batch));
  CENTROID_TRY(measure_parameters(question, out.batch));
  out.micro_batch = out.batch;
  out.micro_batch.samples = micro_batch_of(question);
  CENTROID_ASSIGN(out.micro_batch.layers, measure_layers(model, out.micro_batch.samples));
  return out;
}

Result<ComputingSpeed> speed_of(const Model& model, const PlanQuestion& question,
                                double batch_seconds) {
  CENTROID_ASSIGN(const std::vector<double> elements, matrix_elements(model));
  double sum = 0;
  for (const double one : elements) sum += one;
  ComputingSpeed out;
  out.batch.samples = question.batch;
  for (const double one : elements) {
    const double seconds = batch_seconds * one / sum;
    // A backward has twice as many products as a forward.
    out.batch.layers.push_back({seconds / 3, 2 * seconds / 3, 0});
  }
  out.micro_batch = out.batch;
  return out;
}

Result<std::vector<PlanRow>> plan_job(const Model& model, const PlanQuestion& question,
                                      const ComputingSpeed& speed) {
  const std::uint32_t workers = question.workers;
  if (workers < 2 || question.batch == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "a plan is for 2 workers or more and a batch of 1 "
                 "sample or more, not for " +
                     std::to_string(workers) + " and " + std::to_string(question.batch));
  Planner planner(model, question, speed);
  for (const char* const sharding : {"full", "grad", "none"})
    CENTROID_TRY(planner.add_sharding(sharding));
  for (std::uint32_t group = 2; group < workers; ++group)
    if (workers % group == 0) CENTROID_TRY(planner.add_sharding("hybrid:" + std::to_string(group)));
  for (std::uint32_t stages = 2; stages <= workers; ++stages) {
    if (workers % stages != 0) continue;
    CENTROID_TRY(planner.add_stages(stages, "none"));
    if (stages == workers) continue;
    CENTROID_TRY(planner.add_stages(stages, "grad"));
    CENTROID_TRY(planner.add_stages(stages, "full"));
  }
  return planner.take();
}

const PlanRow* recommended(const std::vector<PlanRow>& rows) {
  const PlanRow* best = nullptr;
  for (const PlanRow& row : rows)
    if (row.fits && (best == nullptr || row.time.all < best->time.all)) best = &row;
  return best;
}

Result<double> parse_bandwidth(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(error == std::errc() ? end : text.data());
  const std::pair<const char*, double> units[] = {
      {"kb/s", 1e3 / 8}, {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8},
      {"kB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},
  };
  const auto* const found =
      std::ranges::find(units, unit, [](const auto& one) { return std::string(one.first); });
  if (error == std::errc() && found != std::end(units) && number > 0 && std::isfinite(number))
    return number * found->second;
  return Error(ErrorCode::kInvalidArgument,
               "bandwidth '" + text +
                   "': give a number over 0 with its unit, as 1Gb/s (bits) or "
                   "125MB/s (bytes)");
}

}  // namespace centroid::worker
