#include "worker/sharded_run.h"

#include <atomic>
#include <fstream>  // lint-ok: the summary is for the caller, no state
#include <map>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "client/group.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/checkpoint/safetensors.h"
#include "worker/node/group_memory.h"
#include "worker/node/sharded_training.h"
#include "worker/stop_signals.h"

namespace centroid::worker {

namespace {

/// The settings as the library takes them.
Result<parallel::ShardedOptions> options_of(const WorkerConfig& config) {
  parallel::ShardedOptions options;
  CENTROID_ASSIGN(options.sharding,
                  parallel::Sharding::parse(config.sharded.sharding,
                                            static_cast<std::uint32_t>(config.sharded.world)));
  options.optimizer = config.optimizer;
  return options;
}

/// Refuse before anything is allocated.
Status check_memory(const WorkerConfig& config, const Model& model, const DataSplit& data,
                    const parallel::ShardedMemory& planes) {
  GroupMemory none = memory_of(model, 1, config.batch, data, false);
  const MemoryLimit limit = memory_limit(config.memory_limit);
  const std::uint64_t other = none.data + none.batch + none.per_device;
  const std::uint64_t divided = planes.parameters + planes.gradients + planes.state;
  if (divided + other <= limit.bytes) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  return Error(ErrorCode::kFailedPrecondition,
               "this rank needs " + text(divided + other) + " bytes, " + limit.source + " allows " +
                   text(limit.bytes) + ": " + text(planes.parameters) + " for parameters, " +
                   text(planes.gradients) + " for gradients, " + text(planes.state) +
                   " for the optimizer, " + text(other) +
                   " for data, batch and activations. Start more ranks, or lower --batch; "
                   "--sharding full needs the least");
}

Result<std::unique_ptr<client::PeerGroup>> join(const WorkerConfig& config) {
  client::PeerOptions options;
  options.rank = static_cast<std::uint32_t>(config.sharded.rank);
  options.world = static_cast<std::uint32_t>(config.sharded.world);
  options.token = config.token;
  options.timeout = config.join_timeout;
  return client::PeerGroup::join(options, config.sharded.rendezvous);
}

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

Status write_summary(const WorkerConfig& config, const ShardedSummary& s,
                     const parallel::ShardedMemory& memory, const transport::TrafficCounters& bytes,
                     const Status& result) {
  const nlohmann::json summary = {
      {"name", config.name},
      {"exchange", config.exchange},
      {"sharding", config.sharded.sharding},
      {"rank", config.sharded.rank},
      {"world", config.sharded.world},
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
  CENTROID_ASSIGN(const parallel::ShardedOptions options, options_of(config));
  CENTROID_ASSIGN(const parallel::ShardedMemory need,
                  sharded_memory(model, options, static_cast<std::uint32_t>(config.sharded.world)));
  CENTROID_TRY(check_memory(config, model, data, need));
  CENTROID_ASSIGN(const auto peers, join(config));
  const collective::Group& group = peers->group();
  CENTROID_ASSIGN(const auto replica, ShardedReplica::make(group, model, config.seed, options));
  log::info("sharded.started", {{"rank", group.rank()},
                                {"world", group.world()},
                                {"sharding", options.sharding.text()},
                                {"model", model.spec()},
                                {"parameters", replica->parameters().layout().elements()},
                                {"units", replica->parameters().layout().units().size()},
                                {"planned_bytes", need.parameters + need.gradients + need.state}});
  IoThread io("io");
  std::atomic<bool> stops = false;
  const StopSignals signals(io, [&stops](const std::string&) { stops = true; });
  ShardedTrainingOptions training;
  training.batch = config.batch;
  training.seed = config.seed;
  training.epochs = config.epochs;
  training.steps = config.rounds;
  ShardedSummary own;
  std::uint64_t epochs = 0;
  ShardedObserver observer;
  observer.is_stopping = [&stops] { return stops.load(); };
  observer.stepped = [&epochs](const ShardedSummary& now) {
    if (now.epochs > epochs) log_epoch(now);
    epochs = now.epochs;
  };
  Status result = train_sharded(*replica, group, data, training, own, observer);
  is_signalled = stops;
  summary.rounds = own.steps;
  summary.samples = own.samples;
  summary.test_accuracy = own.test_accuracy;
  summary.end = own.end;
  summary.is_halted = own.is_halted;
  if (result.ok() && !config.sharded.save.empty())
    result = save(*replica, config.sharded.save, group.rank() == 0);
  if (!config.summary_file.empty())
    CENTROID_TRY(write_summary(config, own, replica->most_memory(), group.traffic(), result));
  return result;
}

}  // namespace centroid::worker
