#include "worker/sharded_run.h"

#include <atomic>
#include <fstream>  // lint-ok: the summary is for the caller, no state
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/checkpoint/safetensors.h"
#include "worker/sharded_job.h"
#include "worker/stop_signals.h"

namespace centroid::worker {

namespace {

/// Write the parameters unit by unit: rank 0 writes, the others send their shards.
Status save(ShardedReplica& replica, const std::string& path, bool is_writer) {
  std::optional<SafetensorsWriter> file;
  if (is_writer) {
    const std::map<std::string, std::string> metadata = {{"model", replica.model().spec()}};
    auto created = SafetensorsWriter::create(path, replica.model().manifest(), metadata);
    if (!created.ok()) return std::move(created).error();
    file.emplace(std::move(*created));
  }
  CENTROID_TRY(replica.visit([&](TensorId, std::span<const float> values) -> Status {
    return file ? file->append(std::as_bytes(values)) : Status();
  }));
  if (!file) return {};
  CENTROID_TRY(file->finish());
  log::info("sharded.saved", {{"path", path}});
  return {};
}

Status write_summary(const WorkerConfig& config, const ShardedJob& job, const Status& result) {
  const ShardedSummary& s = job.summary();
  const parallel::ShardedMemory memory = job.most_memory();
  const transport::TrafficCounters bytes = job.group().traffic();
  const nlohmann::json summary = {
      {"name", config.name},
      {"exchange", config.exchange},
      {"sharding", job.options().sharding.text()},
      {"rank", job.group().rank()},
      {"world", job.group().world()},
      {"rounds", s.steps},
      {"samples", s.samples},
      {"seconds", s.seconds},
      {"step_seconds", s.steps > 0 ? s.seconds / static_cast<double>(s.steps) : 0},
      {"bytes_in", bytes.bytes_in},
      {"bytes_out", bytes.bytes_out},
      {"parameter_bytes", memory.parameters},
      {"gradient_bytes", memory.gradients},
      {"optimizer_bytes", memory.state},
      {"peak_bytes", peak_memory()},
      {"loss", s.loss},
      {"accuracy", s.accuracy},
      {"gradient_norm", s.gradient_norm},
      {"test_loss", s.test_loss},
      {"test_accuracy", s.test_accuracy},
      {"end", s.end},
      {"error", result.ok() ? "" : result.error().to_string()}};
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

}  // namespace

Status run_sharded(const WorkerConfig& config, const Model& model, const DataSplit& data,
                   TrainingSummary& summary, bool& is_signalled) {
  ShardedJob job(config, model, data);
  CENTROID_TRY(job.begin());
  const parallel::ShardedMemory& need = job.planned();
  const parallel::ShardLayout& layout = job.replica().parameters().layout();
  log::info("sharded.started", {{"rank", job.group().rank()},
                                {"world", job.group().world()},
                                {"sharding", job.options().sharding.text()},
                                {"replicas", job.options().replicas},
                                {"model", model.spec()},
                                {"parameters", layout.elements()},
                                {"units", layout.units().size()},
                                {"planned_bytes", need.parameters + need.gradients + need.state},
                                {"step", job.summary().steps}});
  IoThread io("io");
  std::atomic<bool> stops = false;
  const StopSignals signals(io, [&stops](const std::string&) { stops = true; });
  std::uint64_t epochs = job.summary().epochs;
  ShardedObserver observer;
  observer.is_stopping = [&stops] { return stops.load(); };
  observer.stepped = [&epochs](const ShardedSummary& now) {
    if (now.epochs > epochs) log_epoch(now);
    epochs = now.epochs;
  };
  Status result = job.train(observer);
  const ShardedSummary& own = job.summary();
  is_signalled = stops;
  summary.rounds = own.steps;
  summary.samples = own.samples;
  summary.test_accuracy = own.test_accuracy;
  summary.end = own.end;
  summary.is_halted = own.is_halted;
  if (result.ok() && !config.sharded.save.empty())
    result = save(job.replica(), config.sharded.save, job.group().rank() == 0);
  if (!config.summary_file.empty()) CENTROID_TRY(write_summary(config, job, result));
  return result;
}

}  // namespace centroid::worker
