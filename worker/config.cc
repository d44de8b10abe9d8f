#include "worker/config.h"

#include <unistd.h>

#include <array>

namespace centroid::worker {

namespace {

/// Where it joins, and what it trains.
void register_work(config::Schema& s, WorkerConfig& c) {
  s.field(
      "server", &c.server,
      {.text = "the server's data endpoint, HOST:PORT; of several servers one or all, separated by "
               "commas: the one that leads is found"});
  s.field("token", &c.token, {.text = "shared secret of the cluster", .secret = true});
  s.field(
      "data", &c.data,
      {.text = "data set: digits, idx:DIR (MNIST files), packages; for transformers text:PLACE,... "
               "(files and folders; it learns to predict the next token), digits-tokens"});
  s.field(
      "model", &c.model,
      {.text =
           "mlp:IN-HIDDEN-…-OUT[,relu|,gelu][,norm=batch] or transformer:layers=2,width=64,heads=4,"
           "context=64,vocabulary=256,... (docs/models.md)"});
  s.field("batch", &c.batch,
          {.text = "samples this worker takes a round, over all its devices",
           .unit = "samples",
           .min = 1});
  s.field("devices", &c.devices,
          {.text = "devices of this worker, e.g. cpu:0,cpu:1 or cuda:0,cuda:1: one thread and one "
                   "replica each (docs/gpu.md)"});
  s.field("name", &c.name,
          {.text = "unique name of this worker; ranks follow it; empty: host name and process id"});
}

/// How it takes part.
void register_membership(config::Schema& s, WorkerConfig& c) {
  s.field("exchange", &c.exchange,
          {.text = "as the server's: star = through it; ring, hierarchical = gradients among the "
                   "workers; or local: alone, without a server",
           .choices = {"star", "ring", "hierarchical", "local"}});
  s.field("codec", &c.codec,
          {.text = "form of the contributions on the wire: f32, bf16, f16, int8, sign, topk:RATIO, "
                   "each with "
                   "options, e.g. topk:0.01,values=int8 (docs/compression.md)"});
  s.field(
      "state_dir", &c.state_dir,
      {.text = "folder in which error feedback (docs/compression.md) and the state "
               "of local steps (docs/low-communication.md) are kept at the server's checkpoints "
               "and when this worker leaves, for its next start; empty: not kept"},
      "state-dir");
  s.field("seed", &c.seed,
          {.text = "seed of the held-out split (the same on every worker); with exchange local of "
                   "everything"});
  s.field("join_timeout", &c.join_timeout,
          {.text = "give up after so long without the server", .unit = "ms", .min = 0},
          "join-timeout");
  s.field("stop_status", &c.stop_status,
          {.text = "exit status after a signal asked this worker to leave and it did; other than 0 "
                   "where a scheduler should start it again, e.g. 143",
           .max = 255},
          "stop-status");
}

/// What it tells.
void register_reports(config::Schema& s, WorkerConfig& c) {
  s.field(
      "log.level", &c.log_level,
      {.text = "least level to log", .choices = {"trace", "debug", "info", "warn", "error", "off"}},
      "log-level");
  s.field("log.format", &c.log_format, {.text = "form of a log line", .choices = {"text", "json"}},
          "log-format");
  s.field(
      "metrics.listen", &c.metrics_listen,
      {.text = "where GET /metrics (Prometheus), /v1/trace and the probes /livez and /readyz are "
               "served, HOST:PORT, without a token; port 0 takes a free one; empty: nowhere"},
      "metrics-listen");
  s.field("metrics.tls", &c.metrics_tls,
          {.text = "they are served by HTTPS, with tls.certificate (docs/tls.md)"}, "metrics-tls");
  s.field("summary_file", &c.summary_file,
          {.text = "write what was done to this JSON file at the end"}, "summary-file");
}

/// TLS.
void register_tls(config::Schema& s, WorkerConfig& c) {
  s.field("tls.authority", &c.tls_authority,
          {.text = "PEM file with the authority that signs the server's certificate, or \"system\" "
                   "for those this machine trusts: connections are then TLS (docs/tls.md); "
                   "empty: they are not"},
          "tls-authority");
  s.field("tls.certificate", &c.tls_certificate,
          {.text = "PEM file with this worker's certificate, for a server that asks for one and "
                   "for the other workers (exchange ring, hierarchical)"},
          "tls-certificate");
  s.field("tls.key", &c.tls_key, {.text = "PEM file with the certificate's private key"},
          "tls-key");
  s.field("tls.server_name", &c.tls_server_name,
          {.text = "name that the server's certificate must be for; empty: the host of `server`"},
          "tls-server-name");
}

/// Data and models in detail.
void register_data(config::Schema& s, WorkerConfig& c) {
  s.field("data.cache_dir", &c.data_cache_dir,
          {.text = "folder where ./centroid build puts digits.csv.gz"}, "data-cache-dir");
  s.field("data.vocabulary", &c.data_vocabulary,
          {.text = "data text: file of tokens beside the 256 bytes, one a line (docs/models.md); "
                   "empty: bytes only"},
          "data-vocabulary");
  s.field(
      "load_ahead", &c.load_ahead,
      {.text = "most batches that are loaded while others are trained on; fewer where memory is "
               "short; 0: each is loaded when its turn comes",
       .unit = "batches",
       .max = 512},
      "load-ahead");
  s.field(
      "base_weights", &c.base_weights,
      {.text = "safetensors file (a checkpoint's model.safetensors) that a transformer begins at "
               "or, with lora=RANK, stays at beside its adapters; the same on every worker"},
      "base-weights");
  s.field(
      "adapter.load", &c.adapter_load,
      {.text = "lora: folder of adapters (PEFT's two files) that training begins at; empty: new "
               "ones"},
      "adapter-load");
  s.field("adapter.save", &c.adapter_save,
          {.text = "lora: folder in which this worker leaves the adapters at the end; empty: none"},
          "adapter-save");
}

/// Alone, without a server.
void register_alone(config::Schema& s, WorkerConfig& c) {
  s.field("epochs", &c.epochs,
          {.text = "exchange local: passes over the data; 0: no limit", .unit = "epochs"});
  s.field("rounds", &c.rounds, {.text = "exchange local: rounds; 0: no limit", .unit = "rounds"});
  s.field("optimizer.name", &c.optimizer.name,
          {.text = "exchange local: update rule", .choices = optimizer_names()}, "optimizer");
  s.field("optimizer.learning_rate", &c.optimizer.learning_rate,
          {.text = "exchange local: step size", .min = 0.0}, "lr");
  s.field("optimizer.schedule", &c.optimizer.schedule,
          {.text = "exchange local: as the server's (docs/optimizers.md)"}, "lr-schedule");
  s.field("optimizer.clip_norm", &c.optimizer.clip_norm,
          {.text = "exchange local: bound of the gradient's norm; 0: none", .min = 0.0},
          "clip-norm");
  s.field("optimizer.momentum", &c.optimizer.momentum,
          {.text = "exchange local", .min = 0.0, .max = 1.0});
  s.field("optimizer.weight_decay", &c.optimizer.weight_decay,
          {.text = "exchange local", .min = 0.0});
  s.field("nonfinite", &c.nonfinite,
          {.text = "exchange local: what NaN or infinity does",
           .choices = {"halt", "skip", "propagate"}});
  s.field("checkpoint.dir", &c.checkpoint_dir,
          {.text = "exchange local: folder of the final checkpoint; empty: none"},
          "checkpoint-dir");
}

/// Local steps.
void register_local_steps(config::Schema& s, WorkerConfig& c) {
  s.field("inner.optimizer", &c.inner.name,
          {.text = "local steps (the server's local_steps): update rule of this worker",
           .choices = optimizer_names()},
          "inner-optimizer");
  s.field("inner.learning_rate", &c.inner.learning_rate,
          {.text = "local steps: step size", .min = 0.0}, "inner-lr");
  s.field("inner.schedule", &c.inner.schedule,
          {.text = "local steps: factor on the step size, by this worker's own steps "
                   "(docs/optimizers.md)"},
          "inner-schedule");
  s.field("inner.schedule_by", &c.inner_schedule_by,
          {.text = "local steps: the schedule goes by this worker's own steps, or by those of the "
                   "whole cluster (so that unequal workers have one learning rate)",
           .choices = {"worker", "cluster"}});
  s.field("inner.clip_norm", &c.inner.clip_norm,
          {.text = "local steps: bound of the gradient's norm; 0: none", .min = 0.0},
          "inner-clip-norm");
  s.field("inner.momentum", &c.inner.momentum, {.text = "local steps", .min = 0.0, .max = 1.0});
  s.field("inner.beta1", &c.inner.beta1, {.text = "local steps", .min = 0.0, .max = 1.0});
  s.field("inner.beta2", &c.inner.beta2, {.text = "local steps", .min = 0.0, .max = 1.0});
  s.field("inner.weight_decay", &c.inner.weight_decay, {.text = "local steps", .min = 0.0});
  s.field("inner.scale_ratio", &c.inner_scale_ratio,
          {.text = "local steps: the step size is multiplied with 1 + (workers - 1) x this",
           .min = 0.0,
           .max = 1000.0});
  s.field("inner.on_gpu", &c.inner_on_gpu,
          {.text = "local steps: the optimizer runs on the GPUs, where parameters and slots stay; "
                   "no: on the host, and the GPUs need no memory for slots"});
}

/// Exchange among the workers.
void register_peers(config::Schema& s, WorkerConfig& c) {
  s.field(
      "peer.listen", &c.peer_listen,
      {.text = "exchange ring, hierarchical: where other workers connect, HOST:PORT; empty: the "
               "address from which this machine reaches the server, a free port"},
      "peer-listen");
  s.field("peer.advertise", &c.peer_advertise,
          {.text = "HOST:PORT that the other workers are told, when it is not peer.listen (NAT, "
                   "containers)"},
          "peer-advertise");
  s.field("peer.shared_memory", &c.peer_shared_memory,
          {.text = "exchange ring, hierarchical: workers on one machine exchange through shared "
                   "memory instead of TCP"},
          "peer-shared-memory");
  s.field(
      "peer.node", &c.peer_node,
      {.text = "exchange hierarchical: name of the machine, the same for workers that share its "
               "memory; empty: found out"},
      "node");
}

/// Memory, processors and the network, which are rarely touched.
void register_resources(config::Schema& s, WorkerConfig& c) {
  s.field("memory_limit", &c.memory_limit,
          {.text = "what model, data and batch of this worker may need; more is refused before "
                   "training; 0: the cgroup's limit, or the physical memory",
           .unit = "bytes"},
          "memory-limit");
  s.field("pinned_memory", &c.pinned_memory,
          {.text = "memory of the host that may be locked for copies to GPUs and back; the rest is "
                   "plain, and copied more slowly; 0: half of memory_limit",
           .unit = "bytes"},
          "pinned-memory");
  s.field("blas_threads", &c.blas_threads,
          {.text = "threads of one BLAS call", .unit = "threads", .min = 1, .max = 1024},
          "blas-threads");
  s.field("matmul", &c.matmul,
          {.text = "devices cuda:N: how exactly matrices are multiplied; tf32 and bf16 are faster, "
                   "with 10 and 7 bits behind the point",
           .choices = {"f32", "tf32", "bf16"}});
  s.field(
      "nccl.library", &c.nccl,
      {.text = "NCCL, through which two GPUs or more of this worker add their gradients; empty: "
               "they add on the host"},
      "nccl-library");
  s.field("nccl.timeout", &c.nccl_timeout,
          {.text = "end the worker when an addition among its GPUs takes so long",
           .unit = "ms",
           .min = 1},
          "nccl-timeout");
  s.field(
      "congestion_control", &c.congestion_control,
      {.text =
           "TCP congestion control: auto (cubic on loopback), a name, or empty for the system's"});
  s.field("trace.file", &c.trace_file,
          {.text = "write what this process does when to this file, as JSON that Perfetto and "
                   "chrome://tracing read; empty: nowhere (the newest is kept in memory anyhow)"},
          "trace");
  s.field("trace.limit", &c.trace_limit,
          {.text = "largest size of trace.file; later spans are left out", .unit = "bytes"});
  s.field(
      "slowdown", &c.slowdown,
      {.text = "for tests of unequal machines: a batch takes so many times as long, the rest of "
               "it asleep",
       .min = 1.0,
       .max = 1000.0});
}

}  // namespace

// In the order of --help: what a first worker needs stands first.
void register_fields(config::Schema& s, WorkerConfig& c) {
  register_work(s, c);
  register_membership(s, c);
  register_reports(s, c);
  register_tls(s, c);
  register_data(s, c);
  register_alone(s, c);
  register_local_steps(s, c);
  register_peers(s, c);
  register_resources(s, c);
}

Status finish(WorkerConfig& c) {
  if (c.name.empty()) {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    c.name = std::string(host.data()) + "-" + std::to_string(::getpid());
  }
  if (c.name.size() > 256)
    return Error(ErrorCode::kInvalidArgument,
                 "name has " + std::to_string(c.name.size()) + " bytes, at most 256");
  if (c.peer_node.size() > 256)
    return Error(ErrorCode::kInvalidArgument,
                 "peer.node has " + std::to_string(c.peer_node.size()) + " bytes, at most 256");
  if (c.metrics_tls && (c.tls_certificate.empty() || c.metrics_listen.empty()))
    return Error(ErrorCode::kInvalidArgument,
                 "metrics.tls needs tls.certificate, tls.key and metrics.listen");
  if (c.tls_authority.empty() &&
      ((!c.tls_certificate.empty() && !c.metrics_tls) || !c.tls_server_name.empty()))
    return Error(
        ErrorCode::kInvalidArgument,
        "tls.certificate and tls.server_name are for TLS, which tls.authority switches on");
  if (!c.tls_authority.empty() && c.tls_certificate.empty() && c.exchange != "star" &&
      c.exchange != "local")
    return Error(ErrorCode::kInvalidArgument,
                 "exchange " + c.exchange +
                     " with TLS: the other workers connect to this one, set tls.certificate and "
                     "tls.key");
  if (auto optimizer = make_optimizer(c.optimizer); !optimizer.ok())
    return std::move(optimizer).error();
  if (auto inner = make_optimizer(c.inner); !inner.ok())
    return std::move(inner).error().with_context("inner");
  if (!c.state_dir.empty() && c.exchange == "local")
    return Error(ErrorCode::kInvalidArgument,
                 "state_dir is for a worker of a cluster, not for exchange local: leave it empty");
  if (c.exchange == "local" && c.epochs == 0 && c.rounds == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "exchange local needs a goal: --epochs N or --rounds N");
  return {};
}

}  // namespace centroid::worker
