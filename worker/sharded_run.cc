#include "worker/sharded_run.h"

#include <malloc.h>

#include <atomic>
#include <fstream>  // lint-ok: the summary is for the caller, no state
#include <functional>

#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "worker/sharded_job.h"
#include "worker/sharded_monitor.h"
#include "worker/sharded_save.h"
#include "worker/stop_signals.h"

namespace centroid::worker {

namespace {

/// What a pipeline was on this rank; null: there are no stages.
nlohmann::json pipeline_of(const JobDivision& division, const RankCosts& costs,
                           std::uint32_t rank) {
  if (!division.has_parts()) return {};
  const parallel::Bubble bubble = costs.pipeline.bubble();
  nlohmann::json out = {
      {"mesh", division.mesh().text()},       {"first_layer", division.layers().begin},
      {"layers", division.layers().count},    {"imbalance", division.imbalance()},
      {"bubble_of_useful", bubble.of_useful}, {"bubble_of_total", bubble.of_total}};
  if (!division.waits()) out["stage"] = division.mesh().place_of(rank).pipeline;
  return out;
}

Status write_summary(const WorkerConfig& config, const ShardedJob& job, const Status& result) {
  const RankCosts costs = job.costs();
  const JobDivision& division = job.division();
  const ShardedSummary& s = job.summary();
  const transport::TrafficCounters bytes = job.group().traffic();
  nlohmann::json summary = {
      {"name", config.name},
      {"exchange", config.exchange},
      {"sharding", division.sharding()},
      {"codec", config.codec},
      {"codec_down", config.sharded.codec_down},
      {"rank", job.group().rank()},
      {"world", job.group().world()},
      {"rounds", s.steps},
      {"samples", s.samples},
      {"seconds", s.seconds},
      {"step_seconds", s.steps > 0 ? s.seconds / static_cast<double>(s.steps) : 0},
      {"bytes_in", bytes.bytes_in},
      {"bytes_out", bytes.bytes_out},
      {"parameter_bytes", costs.memory.parameters},
      {"gradient_bytes", costs.memory.gradients},
      {"optimizer_bytes", costs.memory.state},
      {"peak_bytes", peak_memory()},
      {"loss", s.loss},
      {"accuracy", s.accuracy},
      {"gradient_norm", s.gradient_norm},
      {"test_loss", s.test_loss},
      {"test_accuracy", s.test_accuracy},
      {"end", s.end},
      {"error", result.ok() ? "" : result.error().to_string()}};
  if (auto pipeline = pipeline_of(division, costs, job.group().rank()); !pipeline.is_null())
    summary["pipeline"] = std::move(pipeline);
  std::ofstream out(config.summary_file);  // lint-ok: for the caller, no state; may be a pipe
  out << summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  out.close();
  if (!out)
    return Error(ErrorCode::kFailedPrecondition,
                 "cannot write " + config.summary_file + " (summary_file)");
  return {};
}

void log_epoch(const ShardedSummary& now) {
  const log::Field epoch{"epoch", now.epochs}, round{"round", now.steps},
      loss{"last_loss", now.loss};
  if (now.test_accuracy < 0)
    log::info("epoch.ended", {epoch, round, loss});
  else
    log::info(
        "epoch.ended",
        {epoch, round, loss, {"test_accuracy", now.test_accuracy}, {"test_loss", now.test_loss}});
}

/// Whether a signal wants the worker to end, from now on.
class Stop {
 public:
  bool is_wanted() const { return is_wanted_; }
  void wait() const { is_wanted_.wait(false); }

 private:
  void want() {
    is_wanted_ = true;
    is_wanted_.notify_all();
  }

  std::atomic<bool> is_wanted_ = false;
  IoThread io_{"io"};
  const StopSignals signals_{io_, [this](const std::string&) { want(); }};
};

/// Train until the goal, a signal or an error.
Status train_watched(const ShardedSummary& before, const Stop& stop,
                     const std::function<Status(const ShardedObserver&)>& train) {
  std::uint64_t epochs = before.epochs;
  ShardedObserver observer;
  observer.is_stopping = [&stop] { return stop.is_wanted(); };
  observer.stepped = [&epochs](const ShardedSummary& now, const StepTimes&) {
    if (now.epochs > epochs) log_epoch(now);
    epochs = now.epochs;
  };
  return train(observer);
}

/// Show the end, until a signal where nobody wants a worker that has reached the goal to exit.
void stay(const WorkerConfig& config, const ShardedSummary& summary, const Stop& stop,
          ShardedMonitor& monitor) {
  monitor.enter(ShardedMonitor::Phase::kEnded, summary.end);
  if (config.sharded.exit_when_finished || summary.is_stopped) return;
  log::info("sharded.finished", {{"step", summary.steps}});
  stop.wait();
}

void report(const ShardedSummary& own, TrainingSummary& summary) {
  summary.rounds = own.steps;
  summary.samples = own.samples;
  summary.test_accuracy = own.test_accuracy;
  summary.end = own.end;
  summary.is_halted = own.is_halted;
}

void log_start(const WorkerConfig& config, const Model& model, const ShardedJob& job) {
  const JobDivision& division = job.division();
  if (!division.has_parts()) {
    const parallel::ShardedMemory& need = division.planned();
    const parallel::ShardLayout& layout = job.parameters()->layout();
    log::info("sharded.started", {{"rank", job.group().rank()},
                                  {"world", job.group().world()},
                                  {"sharding", division.sharding()},
                                  {"replicas", division.options().sharded.replicas},
                                  {"codec", config.codec},
                                  {"codec_down", config.sharded.codec_down},
                                  {"model", model.spec()},
                                  {"parameters", layout.elements()},
                                  {"units", layout.units().size()},
                                  {"planned_bytes", need.parameters + need.gradients + need.state},
                                  {"step", job.summary().steps}});
  } else if (!division.waits()) {
    log::info("pipeline.started", {{"rank", job.group().rank()},
                                   {"mesh", division.mesh().text()},
                                   {"stage", division.mesh().place_of(job.group().rank()).pipeline},
                                   {"first_layer", division.layers().begin},
                                   {"layers", division.layers().count},
                                   {"imbalance", division.imbalance()},
                                   {"schedule", parallel::to_string(division.options().schedule)},
                                   {"micro_batches", division.options().micro_batches},
                                   {"sharding", division.sharding()},
                                   {"codec", config.codec},
                                   {"codec_down", config.sharded.codec_down},
                                   {"model", model.spec()},
                                   {"step", job.summary().steps}});
  }
}

}  // namespace

Status run_sharded(const WorkerConfig& config, const Model& model, const DataSplit& data,
                   TrainingSummary& summary, bool& is_signalled) {
#ifdef M_ARENA_MAX
  ::mallopt(M_ARENA_MAX, 1);  // each arena reserves 64 MiB, and keeps memory that others need
#endif
  CENTROID_ASSIGN(const auto mesh,
                  parallel::Mesh::parse(config.sharded.parallel,
                                        static_cast<std::uint32_t>(config.sharded.world)));
  CENTROID_ASSIGN(const auto monitor, ShardedMonitor::start(config));
  ShardedJob job(config, model, data, mesh, *monitor);
  CENTROID_TRY(job.begin());
  Stop stop;
  if (job.is_over()) {
    summary.end = "the job has ended";
    log::info("sharded.already_ended", {{"rank", config.sharded.rank}});
    monitor->enter(ShardedMonitor::Phase::kEnded, summary.end);
    if (!config.sharded.exit_when_finished) stop.wait();
    return {};
  }
  log_start(config, model, job);
  Status result = train_watched(
      job.summary(), stop, [&](const ShardedObserver& observer) { return job.train(observer); });
  is_signalled = stop.is_wanted();
  report(job.summary(), summary);
  if (result.ok() && !config.sharded.save.empty()) {
    monitor->enter(ShardedMonitor::Phase::kSaving);
    result = job.explain(save_model(job.replica(), config.sharded.save, job.group().rank() == 0));
  }
  if (result.ok() && !job.kept().ok())
    result = job.kept().error().with_context("the last checkpoint was not written");
  if (!config.summary_file.empty()) CENTROID_TRY(write_summary(config, job, result));
  if (result.ok()) stay(config, job.summary(), stop, *monitor);
  return result;
}

}  // namespace centroid::worker
