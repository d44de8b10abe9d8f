#include "worker/app.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>  // lint-ok: the summary is for the caller, no state
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/async/io_thread.h"
#include "common/base/exit_status.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/metrics.h"
#include "common/base/prometheus_registry.h"
#include "common/base/trace_events.h"
#include "common/base/version.h"
#include "common/device/blas.h"
#include "common/device/device.h"
#include "common/tensor/fingerprint.h"
#include "transport/server_list.h"
#include "worker/data/batch_loader.h"
#include "worker/exchange/cluster_exchange.h"
#include "worker/exchange/local_exchange.h"
#include "worker/exchange/open_peers.h"
#include "worker/loop/rounds.h"
#include "worker/metrics_port.h"
#include "worker/model/adapters.h"
#include "worker/node/device_residual.h"
#include "worker/node/local_steps.h"
#include "worker/node/training_loop.h"
#include "worker/probe.h"
#include "worker/sharded_run.h"
#include "worker/stop_signals.h"
#include "worker/tls_layer.h"

namespace centroid::worker {

namespace {

std::uint64_t count_devices(const std::string& devices) {
  return 1 + static_cast<std::uint64_t>(std::count(devices.begin(), devices.end(), ','));
}

/// This worker's connections with the other workers.
Status accept_peers(const WorkerConfig& config, ClusterOptions& options,
                    metrics::Counter connections) {
  if (config.exchange == "star") return {};
  PeerSettings peers;
  peers.listen = config.peer.listen;
  peers.advertise = config.peer.advertise;
  peers.shared_memory = config.peer.shared_memory;
  peers.congestion_control = config.congestion_control;
  peers.connections = connections;
  if (!config.tls.authority.empty() && config.tls.certificate.empty()) {  // exchange auto
    log::info("peers.none", {{"why", "TLS among workers needs tls.certificate and tls.key"}});
    return {};
  }
  CENTROID_ASSIGN(peers.layer, tls_layer(config, true));
  return open_peers(peers, options);
}

/// `is_member` is true while this worker is a member of the cluster.
Result<std::unique_ptr<Exchange>> make_exchange(const WorkerConfig& config, const Model& model,
                                                const DataSplit& data, ExchangeMemory memory,
                                                IoThread& io, metrics::Registry& registry,
                                                std::atomic<bool>& is_member) {
  if (config.exchange == "local") {
    LocalOptions options;
    options.optimizer = config.optimizer;
    options.seed = config.seed;
    options.batch = config.batch;
    options.train_samples = data.train.samples;
    options.epochs = config.epochs;
    options.rounds = config.rounds;
    options.skip_nonfinite = config.nonfinite == "skip";
    options.propagate_nonfinite = config.nonfinite == "propagate";
    options.manifest = model.manifest();
    options.checkpoint_dir = config.checkpoint.dir;
    options.model = model.spec();
    return make_local_exchange(std::move(options), std::move(memory));
  }
  const metrics::Counter connections =
      registry.counter("centroid_worker_peer_connections_total",
                       "Connections opened with other workers, by either side.");
  ClusterOptions options;
  CENTROID_ASSIGN(options.servers, transport::ServerList::parse(config.server));
  options.token = config.token;
  options.membership = [&is_member](bool is_one) { is_member = is_one; };
  options.join_timeout = config.join_timeout;
  options.state_dir = config.state_dir;
  options.join.name = config.name;
  options.join.exchange = config.exchange;
  options.join.node = config.peer.node.empty() ? transport::this_node() : config.peer.node;
  options.join.codec = config.codec;
  options.join.devices = static_cast<std::uint32_t>(count_devices(config.devices));
  options.join.batch = config.batch;
  options.join.train_samples = data.train.samples;
  options.join.data_fingerprint = data.train.fingerprint();
  if (data.train.vocabulary > 0) options.join.sample_tokens = data.train.targets();
  options.join.model = model.spec();
  options.join.manifest = model.manifest();
  CENTROID_TRY(accept_peers(config, options, connections));
  transport::TransportOptions transport_options;
  transport_options.limits.max_head_bytes = transport::kMaxHeadBytes;
  transport_options.limits.max_payload_bytes = 256u << 20;
  transport_options.congestion_control = config.congestion_control;
  CENTROID_ASSIGN(transport_options.layer, tls_layer(config, false));
  auto transport = transport::make_tcp(io.executor(), transport_options);
  return make_cluster_exchange(io.executor(), std::move(transport), std::move(options),
                               std::move(memory), registry);
}

/// -1: this worker did not evaluate.
double perplexity(const TrainingSummary& s) {
  return s.test_accuracy < 0 ? -1 : std::exp(s.test_loss);
}

double ratio(std::uint64_t raw, std::uint64_t encoded) {
  return encoded == 0 ? 1 : static_cast<double>(raw) / static_cast<double>(encoded);
}

/// The codecs' totals, as a `Record` constructed from pairs of name and value.
template <class Record>
Record describe(const CodecTotals& c) {
  return Record{{"codec", c.codec},
                {"codec_down", c.codec_down},
                {"raw_bytes_out", c.raw_out},
                {"encoded_bytes_out", c.encoded_out},
                {"ratio_out", ratio(c.raw_out, c.encoded_out)},
                {"raw_bytes_in", c.raw_in},
                {"encoded_bytes_in", c.encoded_in},
                {"ratio_in", ratio(c.raw_in, c.encoded_in)},
                {"chunks", c.chunks},
                {"dense_chunks", c.dense_chunks},
                {"encode_seconds", c.encode_seconds},
                {"decode_seconds", c.decode_seconds},
                {"residual_norm", c.residual_norm}};
}

/// The record for the log.
struct CompressedEvent {
  CompressedEvent(log::Fields fields) { log::info("worker.compressed", fields); }
};

Status write_summary(const std::string& path, const WorkerConfig& config, const TrainingSummary& s,
                     std::span<const float> params, const Status& result) {
  const nlohmann::json summary = {
      {"name", config.name},
      {"exchange", config.exchange},
      {"rounds", s.rounds},
      {"skipped_rounds", s.skipped},
      {"lost_rounds", s.lost},
      {"late_rounds", s.late},
      {"samples", s.samples},
      {"compute_seconds", s.compute_seconds},
      {"wait_seconds", s.wait_seconds},
      {"seconds", s.total_seconds},
      {"step_seconds", s.rounds > 0 ? s.compute_seconds / static_cast<double>(s.rounds) : 0},
      {"bytes_in", s.traffic.bytes_in},
      {"bytes_out", s.traffic.bytes_out},
      {"compression", describe<nlohmann::json>(s.traffic.codecs)},
      {"loss", s.last_loss},
      {"accuracy", s.last_accuracy},
      {"gradient_norm", s.gradient_norm},
      {"test_accuracy", s.test_accuracy},
      {"test_loss", s.test_loss},
      {"test_perplexity", perplexity(s)},
      {"version", s.version.value},
      {"fingerprint", std::to_string(fingerprint(params))},
      {"optimizer_fingerprint", std::to_string(s.optimizer_fingerprint)},
      {"end", s.end},
      {"error", result.ok() ? "" : result.error().to_string()}};
  std::ofstream out(path);  // lint-ok: for the caller, no state; may be a pipe
  out << summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  out.close();
  if (!out)
    return Error(ErrorCode::kFailedPrecondition, "cannot write " + path + " (summary_file)");
  return {};
}

/// Check that the model has adapters to read or write.
Result<const Transformer*> adapted(const Model& model) {
  const auto* const transformer = dynamic_cast<const Transformer*>(&model);
  if (transformer != nullptr && transformer->config().lora.rank > 0) return transformer;
  return Error(ErrorCode::kInvalidArgument,
               "adapter.load and adapter.save are for transformers with "
               "lora=RANK, not for model " +
                   model.spec());
}

/// After the first round training has allocated all its memory: the free memory is available for
/// batches, and the plan can be compared with the real use.
void measure_memory(ReplicaGroup& group, const GroupMemory& need, const MemoryLimit& limit,
                    std::uint64_t most_ahead) {
  const std::uint64_t ahead =
      load_depth({.free_bytes = available_memory(), .batch_bytes = need.batch, .most = most_ahead});
  group.set_load_ahead(ahead);
  const std::uint64_t peak = peak_memory();
  const log::Fields fields{{"peak_bytes", peak},
                           {"planned_bytes", need.total()},
                           {"limit_bytes", limit.bytes},
                           {"limit_by", limit.source},
                           {"load_ahead", ahead}};
  if (peak > limit.bytes)
    log::warn("worker.memory_limit_exceeded", fields);
  else
    log::info("worker.memory_measured", fields);
}

/// The model's data set.
Result<DataSplit> load_data_for(const WorkerConfig& config, const Model& model) {
  DataOptions options;
  options.spec = config.data;
  options.cache_dir = config.data_cache_dir;
  options.seed = config.seed;
  options.vocabulary_file = config.data_vocabulary;
  options.context = model.vocabulary() > 0 ? model.features() : 0;
  CENTROID_ASSIGN(auto data, load_data(options));
  CENTROID_TRY(check_fits(model, data.train));
  if (config.batch > data.train.samples)
    return Error(ErrorCode::kInvalidArgument,
                 "batch " + std::to_string(config.batch) + " is larger than the training data (" +
                     std::to_string(data.train.samples) + " samples): lower --batch");
  return data;
}

/// The initial adapters; empty: none.
Result<std::vector<float>> read_adapters(const WorkerConfig& config, const Model& model) {
  std::vector<float> adapters;
  if (config.adapter.load.empty() && config.adapter.save.empty()) return adapters;
  CENTROID_ASSIGN(const auto* const transformer, adapted(model));
  if (config.adapter.load.empty()) return adapters;
  for (const TensorInfo& tensor : model.manifest())
    adapters.resize(adapters.size() + tensor.elements());
  CENTROID_TRY(load_adapters(config.adapter.load, transformer->config(), transformer->base_hash(),
                             adapters));
  return adapters;
}

/// Write the trained adapters, if configured.
Status write_adapters(const WorkerConfig& config, const Model& model,
                      std::span<const float> params) {
  if (config.adapter.save.empty()) return {};
  CENTROID_ASSIGN(const auto* const transformer, adapted(model));
  CENTROID_TRY(
      save_adapters(config.adapter.save, transformer->config(), transformer->base_hash(), params));
  log::info("adapters.written", {{"path", config.adapter.save}});
  return {};
}

/// The replicas on the devices. `ahead`: batches that are loaded ahead.
Result<std::unique_ptr<ReplicaGroup>> open_group(const WorkerConfig& config, const Model& model,
                                                 const MemoryLimit& limit, std::uint64_t ahead) {
  GroupOptions options;
  options.devices = config.devices;
  options.load_ahead = ahead;
  options.batch = config.batch;
  options.slowdown = config.slowdown;
  options.nccl = config.nccl.library;
  options.nccl_timeout = config.nccl.timeout;
  options.pinned_bytes = config.pinned_memory > 0 ? config.pinned_memory : limit.bytes / 2;
  CENTROID_ASSIGN(options.matmul, parse_matmul(config.matmul));
  return make_replica_group(model, std::move(options));
}

void log_start(const WorkerConfig& config, const Model& model, const DataSplit& data,
               ReplicaGroup& group, const GroupMemory& need, std::uint64_t ahead) {
  const std::string cuda = cuda_release();
  log::info("worker.started", {{"version", kVersion},
                               {"cuda", cuda.empty() ? "not built in" : cuda},
                               {"name", config.name},
                               {"model", model.spec()},
                               {"parameters", group.params().size()},
                               {"frozen_bytes", model.frozen_bytes()},
                               {"memory_bytes", need.total()},
                               {"device_bytes", need.per_device},
                               {"load_ahead", ahead},
                               {"data", data.train.name},
                               {"train_samples", data.train.samples},
                               {"test_samples", data.test.samples},
                               {"devices", config.devices}});
}

Result<std::unique_ptr<LocalSteps>> open_local_steps(const WorkerConfig& config,
                                                     ReplicaGroup& group, Rounds& rounds) {
  LocalSteps::Options options;
  options.optimizer = config.inner;
  options.batch = config.batch;
  options.worker = config.name;
  options.state_dir = config.state_dir;
  options.schedules_by_cluster = config.local_steps.schedule_by == "cluster";
  options.scale_ratio = config.local_steps.scale_ratio;
  options.on_gpu = config.local_steps.on_gpu;
  return LocalSteps::make(group, rounds, std::move(options));
}

/// Memory that the exchange reads and writes; all of it outlives the exchange.
ExchangeMemory exchange_memory(const WorkerConfig& config, const Model& model, ReplicaGroup& group,
                               LocalSteps& local, const std::vector<float>& adapters) {
  ExchangeMemory memory;
  memory.params = group.params();
  memory.gradients = group.gradients();
  memory.use_params = [&local](std::span<float> params) { local.use_params(params); };
  memory.allocate = [&group](std::size_t bytes) { return group.host_memory(bytes); };
  memory.initialize = [&model, &adapters, params = group.params()](std::uint64_t seed) {
    if (adapters.empty())
      model.initialize(seed, params);
    else
      std::ranges::copy(adapters, params.begin());
  };
  if (!config.state_dir.empty())
    memory.save_local = [&local](Round round) { return local.keep(round); };
  memory.begin_local = [&local](const LocalTerms& terms, const ChunkPlan& plan) {
    return local.begin(terms, plan);
  };
  if (group.device_gradient().device != nullptr)
    memory.device_residual = [&group](const std::string& codec, const ChunkPlan& plan) {
      return residual_on_device(group, codec, plan);
    };
  return memory;
}

/// Reports the end of rounds and epochs. thread: the loop's
class Progress {
 public:
  Progress(Exchange& exchange, Probe& probe, bool has_tokens)
      : exchange_(exchange), probe_(probe), has_tokens_(has_tokens) {}

  /// Update the metrics after a round.
  void measure(const Share& share, const StepStats& stats, const RoundReport& report,
               const TrainingSummary& now);
  /// Write to the trace, and to the log if an epoch began.
  void tell(const Share& share, const RoundReport& report, const TrainingSummary& now);

 private:
  Exchange& exchange_;
  Probe& probe_;
  const bool has_tokens_;  ///< of the data; then there is a perplexity
  std::uint64_t epoch_ = 0;
  TimePoint epoch_start_ = std::chrono::steady_clock::now();
  const trace::EventLane lane_{"periods"};
};

void Progress::measure(const Share& share, const StepStats& stats, const RoundReport& report,
                       const TrainingSummary& now) {
  probe_.round_ended(share, stats, report);
  if (now.divergence.ratio >= 0) probe_.diverged(now.divergence.cosine, now.divergence.shift);
  probe_.traffic(exchange_.traffic());
  probe_.evaluated(now.test_accuracy, now.test_loss);
}

void Progress::tell(const Share& share, const RoundReport& report, const TrainingSummary& now) {
  const TimePoint end = std::chrono::steady_clock::now();
  if (report.outcome != RoundReport::Outcome::kCommitted)
    lane_.mark("round.not_counted", report.reason);
  if (share.epoch == epoch_) return;
  lane_.period(trace::Period::kEpoch, std::exchange(epoch_start_, end), end, epoch_);
  epoch_ = share.epoch;
  // Values of this worker's last share; the server's event of that name covers the epoch and all
  // workers.
  const log::Field at{"epoch", epoch_}, version{"version", report.version.value},
      loss{"last_loss", now.last_loss}, accuracy{"test_accuracy", now.test_accuracy};
  if (now.test_accuracy < 0)
    log::info("epoch.ended", {at, version, loss});
  else if (has_tokens_)
    log::info("epoch.ended", {at, version, loss, accuracy, {"test_perplexity", perplexity(now)}});
  else
    log::info("epoch.ended", {at, version, loss, accuracy});
}

Status start_and_run(const WorkerConfig& config, TrainingSummary& summary, bool& is_signalled) {
  blas::set_threads(static_cast<int>(config.blas_threads));
  CENTROID_ASSIGN(const auto model, make_model(config.model, config.base_weights));
  CENTROID_ASSIGN(const auto data, load_data_for(config, *model));
  if (config.exchange == "sharded") return run_sharded(config, *model, data, summary, is_signalled);
  CENTROID_ASSIGN(const auto adapters, read_adapters(config, *model));
  const bool on_gpus = config.devices.find("cpu") == std::string::npos;
  GroupMemory need = memory_of(*model, count_devices(config.devices), config.batch, data, on_gpus);
  if (config.exchange == "local") {
    CENTROID_ASSIGN(const auto optimizer, make_optimizer(config.optimizer));
    need.state = optimizer->slots() * (need.shared - model->frozen_bytes()) / 2;
  }
  const MemoryLimit limit = memory_limit(config.memory_limit);
  CENTROID_TRY(check_memory(need, limit));
  const std::uint64_t ahead = load_depth({.free_bytes = available_memory(),
                                          .peak_bytes = need.total() - need.data,
                                          .batch_bytes = need.batch,
                                          .most = config.load_ahead});
  CENTROID_ASSIGN(const auto group, open_group(config, *model, limit, ahead));
  log_start(config, *model, data, *group, need, ahead);
  metrics::PrometheusRegistry registry;
  CENTROID_TRY(begin_measuring(config, registry));
  Probe probe(registry);
  std::atomic<bool> is_member = config.exchange == "local";
  CENTROID_ASSIGN(const auto listener, listen_for_metrics(config, registry, is_member));
  IoThread io("io");
  Rounds rounds(model->manifest(), data.train.samples, group->params());
  CENTROID_ASSIGN(const auto local, open_local_steps(config, *group, rounds));
  ExchangeMemory memory = exchange_memory(config, *model, *group, *local, adapters);
  CENTROID_ASSIGN(const auto exchange,
                  make_exchange(config, *model, data, std::move(memory), io, registry, is_member));
  rounds.connect(*exchange);

  auto signals = std::make_unique<StopSignals>(io, [&](const std::string& why) {
    is_signalled = true;
    exchange->request_stop(why);
  });
  Progress progress(*exchange, probe, data.train.vocabulary > 0);
  const auto observe = [&](const Share& share, const StepStats& stats, const RoundReport& report,
                           const TrainingSummary& now) {
    progress.measure(share, stats, report, now);
    if (now.rounds == 1) measure_memory(*group, need, limit, config.load_ahead);
    progress.tell(share, report, now);
  };
  const Status result = train(*group, data, rounds, summary, observe, local.get());
  rounds.leave(result.ok() ? summary.end : result.error().message());
  local->leave();
  signals.reset();
  trace::finish();
  if (result.ok()) CENTROID_TRY(write_adapters(config, *model, group->params()));
  if (!config.summary_file.empty())
    CENTROID_TRY(write_summary(config.summary_file, config, summary, group->params(), result));
  return result;
}

Status run_within_memory(const WorkerConfig& config, TrainingSummary& summary, bool& is_signalled) {
  try {
    return start_and_run(config, summary, is_signalled);
  } catch (const std::bad_alloc&) {
    const MemoryLimit limit = memory_limit(config.memory_limit);
    return Error(ErrorCode::kResourceExhausted,
                 "out of memory, although " + limit.source + " allows " +
                     std::to_string(limit.bytes) +
                     " bytes, and less was planned. Lower --batch, or start more workers");
  }
}

}  // namespace

int run_worker(const WorkerConfig& config) {
  TrainingSummary summary;
  bool is_signalled = false;
  const Status result = run_within_memory(config, summary, is_signalled);
  if (result.ok()) {
    if (const CodecTotals& c = summary.traffic.codecs; c.codec != "f32" || c.codec_down != "f32")
      describe<CompressedEvent>(c);
    log::info("worker.ended", {{"why", summary.end},
                               {"rounds", summary.rounds},
                               {"samples", summary.samples},
                               {"version", summary.version.value},
                               {"test_accuracy", summary.test_accuracy}});
    return is_signalled ? static_cast<int>(config.stop_status) : kExitDone;
  }
  log::error("worker.failed", {{"error", result.error()}});
  if (summary.is_halted) return kExitHalted;
  return exit_status_of(result.error());
}

}  // namespace centroid::worker
