#include "worker/config.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "worker/parallel/mesh.h"
#include "worker/parallel/part_codec.h"

namespace centroid::worker {

namespace {

/// Server to join, data and model.
void register_work(config::Schema& s, WorkerConfig& c) {
  s.section("Work");
  s.field("server", &c.server,
          {.text = "data address of the server, HOST:PORT; of several servers one or all, "
                   "separated by commas",
           .basic = true});
  s.field("token", &c.token,
          {.text = "shared secret of the cluster", .secret = true, .basic = true});
  s.field("data", &c.data,
          {.text = "data set: digits, idx:DIR (MNIST files), packages; for transformers "
                   "text:PATH,... (files and folders, next-token prediction), digits-tokens",
           .basic = true});
  s.field("model", &c.model,
          {.text = "mlp:IN-HIDDEN-…-OUT[,relu|,gelu][,norm=batch] or "
                   "transformer:layers=2,width=64,heads=4,context=64,vocabulary=256,...",
           .basic = true});
  s.field("batch", &c.batch,
          {.text = "samples per round of this worker, over all its devices",
           .unit = "samples",
           .min = 1,
           .basic = true});
  s.field("devices", &c.devices,
          {.text = "devices of this worker, such as cpu:0,cpu:1 or cuda:0,cuda:1; each has a "
                   "thread and a replica of the model",
           .basic = true});
  s.field(
      "name", &c.name,
      {.text =
           "unique name of this worker, which determines its rank; empty: host name and process id",
       .basic = true});
}

/// Membership.
void register_membership(config::Schema& s, WorkerConfig& c) {
  s.section("Membership");
  s.field("exchange", &c.exchange,
          {.text = "auto: as the server says; star: accept no connections of other workers; ring, "
                   "hierarchical: as on the server; without a server local, or sharded: a model "
                   "divided among workers",
           .choices = {"auto", "star", "ring", "hierarchical", "local", "sharded"},
           .basic = true});
  s.field("codec", &c.codec,
          {.text = "codec of the contributions: f32, bf16, f16, int8, sign, topk:RATIO, each with "
                   "options, such as topk:0.01,values=int8; exchange sharded: of gradients, f32, "
                   "bf16 or int8",
           .basic = true});
  s.field("state_dir", &c.state_dir,
          {.text = "folder for error feedback and the state of local steps, saved with each "
                   "checkpoint of the server and on exit, for the next start; empty: not saved",
           .basic = true});
  s.field("seed", &c.seed,
          {.text = "seed of the held-out split, the same on every worker; with exchange local, "
                   "seed of all random numbers"});
  s.field("join_timeout", &c.join_timeout,
          {.text = "exit when there is no server for this long",
           .unit = "ms",
           .min = 0,
           .basic = true});
  s.field("stop_status", &c.stop_status,
          {.text = "exit status when a signal ends this worker; set 143 where a scheduler should "
                   "start it again",
           .max = 255});
}

/// Log, metrics and traces.
void register_reports(config::Schema& s, WorkerConfig& c) {
  s.section("Log and metrics");
  s.field("log.level", &c.log.level,
          {.text = "lowest level to log",
           .choices = {"trace", "debug", "info", "warn", "error", "off"},
           .basic = true});
  s.field("log.format", &c.log.format,
          {.text = "format of log lines", .choices = {"text", "json"}, .basic = true});
  s.field("metrics.listen", &c.metrics.listen,
          {.text = "address of GET /metrics, /v1/trace, /livez and /readyz, HOST:PORT, without a "
                   "token; with exchange sharded also of /v1/sharded; port 0 takes a free port; "
                   "empty: none",
           .basic = true});
  s.field("metrics.tls", &c.metrics.tls, {.text = "serve them by HTTPS, with tls.certificate"});
  s.field("summary_file", &c.summary_file,
          {.text = "write a summary to this JSON file on exit", .basic = true});
}

/// TLS.
void register_tls(config::Schema& s, WorkerConfig& c) {
  s.section("TLS");
  s.field("tls.authority", &c.tls.authority,
          {.text = "PEM file with the authority of the certificate of the server, or system for "
                   "the authorities of this machine; switches on TLS; empty: no TLS",
           .basic = true});
  s.field("tls.certificate", &c.tls.certificate,
          {.text = "PEM file with the certificate of this worker, for a server that requires one "
                   "and for other workers (exchange ring, hierarchical, sharded)"});
  s.field("tls.key", &c.tls.key, {.text = "PEM file with the private key of the certificate"});
  s.field("tls.server_name", &c.tls.server_name,
          {.text = "name in the certificate of the server; empty: the host of server"});
}

/// Data and models in detail.
void register_data(config::Schema& s, WorkerConfig& c) {
  s.section("Data and model");
  s.field("data_cache_dir", &c.data_cache_dir,
          {.text = "folder with digits.csv.gz, which ./centroid build downloads"});
  s.field("data_vocabulary", &c.data_vocabulary,
          {.text = "data text: file with tokens in addition to the 256 bytes, one per line; empty: "
                   "bytes only"});
  s.field("load_ahead", &c.load_ahead,
          {.text = "maximum number of batches to load ahead; fewer where memory is short; 0: none",
           .unit = "batches",
           .max = 512});
  s.field(
      "base_weights", &c.base_weights,
      {.text =
           "safetensors file with pretrained weights of a transformer, such as model.safetensors "
           "of a checkpoint; with lora=RANK they stay frozen; the same on every worker",
       .basic = true});
  s.field(
      "adapter.load", &c.adapter.load,
      {.text = "lora: folder with initial adapters (the two files of PEFT); empty: new adapters"});
  s.field("adapter.save", &c.adapter.save,
          {.text = "lora: folder for the adapters at the end; empty: not saved"});
}

/// Training without a server.
void register_local(config::Schema& s, WorkerConfig& c) {
  s.section("Without a server (exchange local, sharded)");
  s.field("epochs", &c.epochs,
          {.text = "without a server: train for this many passes over the data; 0: no limit",
           .unit = "epochs"});
  s.field("rounds", &c.rounds,
          {.text = "without a server: train for this many rounds; 0: no limit", .unit = "rounds"});
  s.field("optimizer", &c.optimizer.name, {.text = "update rule", .choices = optimizer_names()});
  s.field("lr", &c.optimizer.learning_rate,
          {.text = "without a server: learning rate", .min = 0.0});
  s.field("lr_schedule", &c.optimizer.schedule, {.text = "as on the server"});
  s.field("clip_norm", &c.optimizer.clip_norm,
          {.text = "maximum norm of the gradient; 0: no clipping", .min = 0.0});
  s.field("momentum", &c.optimizer.momentum,
          {.text = "without a server: for momentum and nesterov", .min = 0.0, .max = 1.0});
  s.field("weight_decay", &c.optimizer.weight_decay,
          {.text = "L2 added to the gradient; for adamw decoupled", .min = 0.0});
  s.field("nonfinite", &c.nonfinite,
          {.text = "exchange local: reaction to NaN or infinity",
           .choices = {"halt", "skip", "propagate"}});
  s.field("checkpoint.dir", &c.checkpoint.dir,
          {.text = "folder of the checkpoints (exchange local: of the final one), the same for all "
                   "ranks; empty: none"});
}

/// A model divided among workers.
void register_sharded(config::Schema& s, WorkerConfig& c) {
  s.section("A model divided among workers (exchange sharded)");
  s.field("sharding", &c.sharded.sharding,
          {.text = "what the ranks divide: full (parameters, gradients, optimizer state), grad "
                   "(gradients, optimizer state), none, or hybrid:K (as full among K consecutive "
                   "ranks)"});
  s.field(
      "shard_replicas", &c.sharded.replicas,
      {.text = "copies of a shard, for the loss of a rank: 0, 1, or auto: 1 with more than 2 ranks",
       .choices = {"auto", "0", "1"}});
  s.field("codec_down", &c.sharded.codec_down,
          {.text = "codec of the parameters that ranks gather: f32, bf16 or int8; each rank's own "
                   "shard stays f32"});
  s.field("parallel", &c.sharded.parallel,
          {.text = "ranks on each axis, as dp=2,pp=3,tp=2: stages of layers (pp), ranks with parts "
                   "of each layer (tp), with other samples (dp); empty: all dp"});
  s.field("micro_batches", &c.sharded.micro_batches,
          {.text = "parts of a batch that pass the stages; 0: 4 for each stage, 1 without pp",
           .max = 4096});
  s.field(
      "schedule", &c.sharded.schedule,
      {.text = "order of a stage's work; gpipe needs more memory", .choices = {"1f1b", "gpipe"}});
  s.field("rank", &c.sharded.rank, {.text = "number of this worker, from 0 to world - 1"});
  s.field("world", &c.sharded.world, {.text = "number of workers", .max = 4096});
  s.field("rendezvous", &c.sharded.rendezvous,
          {.text = "HOST:PORT where rank 0 listens and the other ranks find it"});
  s.field("checkpoint.every_rounds", &c.checkpoint.every_rounds,
          {.text = "steps between checkpoints; 0: only at the end", .unit = "rounds"});
  s.field(
      "checkpoint.keep", &c.checkpoint.keep,
      {.text = "exchange sharded: number of checkpoints to keep", .unit = "checkpoints", .min = 1});
  s.field("resume", &c.resume,
          {.text = "continue from the newest valid checkpoint in checkpoint.dir, "
                   "with any number of ranks"});
  s.field("exit_when_finished", &c.sharded.exit_when_finished,
          {.text = "exchange sharded: exit when the goal is reached; no: serve metrics until a "
                   "signal"});
  s.field(
      "plan.bandwidth", &c.sharded.plan_bandwidth,
      {.text = "train nothing: print memory and time of each sharding and number of stages "
               "for world workers with links of this bandwidth, such as 1Gb/s (centroidctl plan)"});
  s.field("plan.step_time", &c.sharded.plan_step_time,
          {.text = "of a plan: time in which a worker computes its batch; 0: measured",
           .unit = "ms",
           .min = 0});
  s.field(
      "save", &c.sharded.save,
      {.text = "new safetensors file in which rank 0 writes the model at the end; empty: none"});
}

/// Local steps.
void register_local_steps(config::Schema& s, WorkerConfig& c) {
  s.section("Local steps");
  s.field("inner.optimizer", &c.inner.name,
          {.text = "update rule of this worker, for local_steps of the server",
           .choices = optimizer_names(),
           .basic = true});
  s.field("inner.lr", &c.inner.learning_rate, {.text = "learning rate", .min = 0.0, .basic = true});
  s.field("inner.lr_schedule", &c.inner.schedule,
          {.text = "factor on the learning rate by steps, as lr_schedule"});
  s.field("inner.lr_schedule_by", &c.local_steps.schedule_by,
          {.text = "the schedule counts the steps of this worker or of the cluster "
                   "(then unequal workers have one learning rate)",
           .choices = {"worker", "cluster"}});
  s.field("inner.clip_norm", &c.inner.clip_norm,
          {.text = "maximum norm of the gradient; 0: no clipping", .min = 0.0});
  s.field("inner.momentum", &c.inner.momentum,
          {.text = "for momentum and nesterov", .min = 0.0, .max = 1.0});
  s.field("inner.beta1", &c.inner.beta1,
          {.text = "decay of the first moment", .min = 0.0, .max = 1.0});
  s.field("inner.beta2", &c.inner.beta2,
          {.text = "decay of the second moment", .min = 0.0, .max = 1.0});
  s.field("inner.weight_decay", &c.inner.weight_decay,
          {.text = "L2 added to the gradient; for adamw decoupled", .min = 0.0});
  s.field("inner.lr_scale_ratio", &c.local_steps.scale_ratio,
          {.text = "multiply the learning rate by 1 + (workers - 1) x this",
           .min = 0.0,
           .max = 1000.0});
  s.field("inner.on_gpu", &c.local_steps.on_gpu,
          {.text = "run the optimizer on the GPUs, which then store its state; no: on "
                   "the host"});
}

/// Exchange among the workers.
void register_peers(config::Schema& s, WorkerConfig& c) {
  s.section("Exchange among workers (ring, hierarchical)");
  s.field("peer.listen", &c.peer.listen,
          {.text = "address for other workers, HOST:PORT; empty: the "
                   "address of this machine towards the server, with a free port"});
  s.field("peer.advertise", &c.peer.advertise,
          {.text = "HOST:PORT where other workers reach this worker, if it differs from "
                   "peer.listen (NAT, containers)"});
  s.field("peer.shared_memory", &c.peer.shared_memory,
          {.text = "use shared memory instead of TCP between workers "
                   "of one machine, also with exchange sharded"});
  s.field("peer.node", &c.peer.node,
          {.text = "exchange hierarchical: name of the machine, the same for workers that share "
                   "memory; empty: detected"});
}

/// Memory, processors and the network, which are rarely touched.
void register_resources(config::Schema& s, WorkerConfig& c) {
  s.section("Memory, processors and network");
  s.field("memory_limit", &c.memory_limit,
          {.text = "memory for model, data and batch; a worker that needs more exits before "
                   "training; 0: the limit of the cgroup, or the physical memory",
           .unit = "bytes",
           .basic = true});
  s.field("pinned_memory", &c.pinned_memory,
          {.text = "host memory that may be pinned for copies to and from GPUs; other copies are "
                   "slower; 0: half of memory_limit",
           .unit = "bytes"});
  s.field("blas_threads", &c.blas_threads,
          {.text = "threads of one BLAS call", .unit = "threads", .min = 1, .max = 1024});
  s.field("matmul", &c.matmul,
          {.text = "devices cuda:N: precision of matrix products; tf32 and bf16 are faster, with "
                   "10 and 7 bits of mantissa",
           .choices = {"f32", "tf32", "bf16"}});
  s.field("nccl.library", &c.nccl.library,
          {.text = "NCCL library, which averages the gradients of the GPUs of this worker; empty: "
                   "they are averaged on the host"});
  s.field(
      "nccl.timeout", &c.nccl.timeout,
      {.text = "exit when an all-reduce among the GPUs takes this long", .unit = "ms", .min = 1});
  s.field("congestion_control", &c.congestion_control,
          {.text = "TCP congestion control: auto (cubic on loopback), a name, or empty for the "
                   "default of the system"});
  s.field("trace.file", &c.trace.file,
          {.text = "write a trace of this process to this JSON file, for Perfetto and "
                   "chrome://tracing; empty: only the newest spans are kept in memory"});
  s.field("trace.limit", &c.trace.limit,
          {.text = "largest size of trace.file; later spans are dropped", .unit = "bytes"});
  s.field("slowdown", &c.slowdown,
          {.text = "for tests of unequal workers: a batch takes this many times as long",
           .min = 1.0,
           .max = 1000.0});
}
}  // namespace

// In the order of --help: settings of a first run come first.
void register_fields(config::Schema& s, WorkerConfig& c) {
  register_work(s, c);
  register_membership(s, c);
  register_reports(s, c);
  register_tls(s, c);
  register_data(s, c);
  register_local(s, c);
  register_sharded(s, c);
  register_local_steps(s, c);
  register_peers(s, c);
  register_resources(s, c);
}

/// Settings of a job that is more than data parallel.
Status check_pipeline(const WorkerConfig& c, const parallel::Mesh& mesh) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "parallel: " + why);
  };
  const std::uint32_t stages = mesh.size(parallel::Axis::kPipeline);
  const bool has_parts = mesh.size(parallel::Axis::kTensor) > 1;
  const std::uint64_t given = c.sharded.micro_batches;
  if (stages == 1 && !has_parts)
    return given == 0
               ? Status()
               : refuse(
                     "micro_batches are for stages and parts of layers: set pp or tp to 2 or more");
  const std::uint64_t parts = c.sharded.micro_batches_of(stages);
  if (parts < stages)
    return refuse(std::to_string(parts) + " micro_batches for " + std::to_string(stages) +
                  " stages: use at least as many as stages");
  if (c.batch < parts)
    return refuse("a batch of " + std::to_string(c.batch) + " samples for " +
                  std::to_string(parts) + " micro_batches: raise batch or lower micro_batches");
  if (c.sharded.replicas == "1" && mesh.size(parallel::Axis::kData) == 1)
    return refuse("one data rank has no copies: leave shard_replicas at auto");
  return {};
}

/// Settings of exchange sharded, and those that it has no use for.
Status check_sharded(const WorkerConfig& c) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "exchange sharded: " + why);
  };
  if (c.sharded.world < 2)
    return refuse(
        "set --world to the number of workers, 2 or more; one trains with exchange local");
  if (c.sharded.rank >= c.sharded.world)
    return refuse("rank " + std::to_string(c.sharded.rank) + " of world " +
                  std::to_string(c.sharded.world) + ": ranks are 0 to world - 1");
  if (c.sharded.rendezvous.empty())
    return refuse("set --rendezvous HOST:PORT, the same on all ranks: rank 0 listens there");
  CENTROID_ASSIGN(
      const auto mesh,
      parallel::Mesh::parse(c.sharded.parallel, static_cast<std::uint32_t>(c.sharded.world)));
  CENTROID_TRY(parallel::Sharding::parse(c.sharded.sharding, mesh.size(parallel::Axis::kData)));
  CENTROID_TRY(check_pipeline(c, mesh));
  if (c.epochs == 0 && c.rounds == 0) return refuse("needs a goal: --epochs N or --rounds N");
  if (c.checkpoint.dir.empty() && (c.resume || c.checkpoint.every_rounds > 0))
    return refuse("resume and checkpoint.every_rounds need --checkpoint.dir DIR");
  if (c.devices != "cpu:0") return refuse("trains on devices cpu:0, not on " + c.devices);
  CENTROID_TRY(parallel::PartCodec::parse("codec", c.codec));
  CENTROID_ASSIGN(const auto down, parallel::PartCodec::parse("codec_down", c.sharded.codec_down));
  if (c.sharded.sharding == "none" && !down.is_f32())
    return refuse("sharding none sends no parameters: leave codec_down at f32");
  const std::pair<const char*, bool> unused[] = {
      {"tls.server_name", !c.tls.server_name.empty()}, {"state_dir", !c.state_dir.empty()},
      {"base_weights", !c.base_weights.empty()},       {"adapter.load", !c.adapter.load.empty()},
      {"adapter.save", !c.adapter.save.empty()},       {"trace.file", !c.trace.file.empty()},
  };
  for (const auto& [name, is_set] : unused)
    if (is_set) return refuse(std::string("does not support ") + name + ": leave it empty");
  return {};
}

Status finish(WorkerConfig& c) {
  if (!c.sharded.plan_bandwidth.empty()) return {};  // print_plan checks what it needs
  if (c.name.empty()) {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    c.name = std::string(host.data()) + "-" + std::to_string(::getpid());
  }
  if (c.name.size() > 256)
    return Error(ErrorCode::kInvalidArgument,
                 "name has " + std::to_string(c.name.size()) + " bytes, at most 256");
  if (c.peer.node.size() > 256)
    return Error(ErrorCode::kInvalidArgument,
                 "peer.node has " + std::to_string(c.peer.node.size()) + " bytes, at most 256");
  if (c.metrics.tls && (c.tls.certificate.empty() || c.metrics.listen.empty()))
    return Error(ErrorCode::kInvalidArgument,
                 "metrics.tls needs tls.certificate, tls.key and metrics.listen");
  if (c.tls.authority.empty() &&
      ((!c.tls.certificate.empty() && !c.metrics.tls) || !c.tls.server_name.empty()))
    return Error(
        ErrorCode::kInvalidArgument,
        "tls.certificate and tls.server_name are for TLS, which tls.authority switches on");
  if (c.exchange == "sharded")
    CENTROID_TRY(check_sharded(c));
  else if (c.sharded.codec_down != "f32")
    return Error(ErrorCode::kInvalidArgument,
                 "codec_down of a worker is for exchange sharded; for others set it on the server");
  if (!c.tls.authority.empty() && c.tls.certificate.empty() && c.exchange != "auto" &&
      c.exchange != "star" && c.exchange != "local")
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
