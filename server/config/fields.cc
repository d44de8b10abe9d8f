#include "server/config/server_config.h"

/// Every setting of the server, in the order of --help: a first job's settings come first.
namespace centroid::server {

namespace {

/// Addresses and access.
void register_endpoints(config::Schema& s, ServerConfig& c) {
  s.section("Addresses and access");
  s.field("listen", &c.listen,
          {.text = "address for workers, HOST:PORT; port 0 takes a free port", .basic = true});
  s.field("token", &c.token,
          {.text = "shared secret that workers must send; required beyond loopback",
           .secret = true,
           .basic = true});
  s.field("api.listen", &c.api.listen,
          {.text = "address of REST and metrics, HOST:PORT", .basic = true});
  s.field(
      "api.token", &c.api.token,
      {.text = "bearer token of REST; required beyond loopback", .secret = true, .basic = true});
  s.field("api.viewer_token", &c.api.viewer_token,
          {.text = "second bearer token of REST, for reading only, such as for Prometheus",
           .secret = true});
  s.field("endpoints_file", &c.endpoints_file,
          {.text = "write the addresses in use to this JSON file when both listen"});
}

/// The job.
void register_job(config::Schema& s, ServerConfig& c) {
  s.section("Job");
  s.field("min_workers", &c.workers.min,
          {.text = "workers to wait for before the first round",
           .unit = "workers",
           .min = 1,
           .live = true,
           .basic = true});
  s.field("epochs", &c.goal.epochs,
          {.text = "train for this many passes over the data; 0: no limit",
           .unit = "epochs",
           .live = true,
           .basic = true});
  s.field("rounds", &c.goal.rounds,
          {.text = "train for this many rounds; 0: no limit",
           .unit = "rounds",
           .live = true,
           .basic = true});
  s.field("optimizer", &c.optimizer.name,
          {.text = "update rule; mean subtracts the mean contribution without a learning rate",
           .choices = optimizer_names(),
           .basic = true});
  s.field("lr", &c.optimizer.learning_rate,
          {.text = "learning rate", .min = 0.0, .live = true, .basic = true});
  s.field("lr_schedule", &c.optimizer.schedule,
          {.text = "factor on the learning rate by committed rounds: constant, "
                   "step:every=N,factor=0.1, linear:rounds=N, cosine:rounds=N, each with "
                   "warmup=N,floor=F, or onecycle:rounds=N,rise=0.3,start=0.04",
           .live = true,
           .basic = true});
  s.field("init", &c.init,
          {.text = "source of the initial parameters: first-worker, or a safetensors file"});
  s.field(
      "seed", &c.seed,
      {.text = "seed of the initial parameters, the data order and the data split", .basic = true});
  s.field("exit_when_finished", &c.leaving.when_finished,
          {.text = "exit when the job has reached its goal or has halted; otherwise REST stays up "
                   "and a halted job can be continued",
           .live = true,
           .basic = true});
}

/// Files.
void register_files(config::Schema& s, ServerConfig& c) {
  s.section("Files");
  s.field("run_dir", &c.run_dir, {.text = "folder for the files of this job", .basic = true});
  s.field(
      "run_id", &c.run_id,
      {.text =
           "name of this job; empty: a random name, or with resume the name in the checkpoint"});
  register_durability(s, c);
}

/// Logging.
void register_log(config::Schema& s, ServerConfig& c) {
  s.section("Log");
  s.field("log.level", &c.log.level,
          {.text = "lowest level to log",
           .choices = {"trace", "debug", "info", "warn", "error", "off"},
           .live = true,
           .basic = true});
  s.field("log.format", &c.log.format,
          {.text = "format of log lines", .choices = {"text", "json"}, .basic = true});
}

/// Membership.
void register_membership(config::Schema& s, ServerConfig& c) {
  s.section("Workers");
  s.field("max_workers", &c.workers.max,
          {.text = "maximum number of workers",
           .unit = "workers",
           .min = 1,
           .max = 16384,
           .live = true,
           .basic = true});
  s.field("keep_min_workers", &c.workers.min_continue,
          {.text = "start no round with fewer workers than this, but wait for more; 0: continue "
                   "with those that are left",
           .unit = "workers",
           .live = true});
  s.field("lease", &c.timeouts.lease,
          {.text = "a worker that is silent for this long counts as lost",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("round_timeout", &c.timeouts.round,
          {.text = "policy bsp, exchange star: repeat a round without a live worker that has "
                   "contributed nothing for this long; a worker that was a little late gets up to "
                   "four times as long; 0: wait for it",
           .unit = "ms",
           .min = 0,
           .max = 86'400'000,
           .live = true});
  s.field("drain_timeout", &c.timeouts.drain,
          {.text = "how long a stop waits for the open round and for workers to leave",
           .unit = "ms",
           .min = 0,
           .live = true});
  s.field("leave_workers", &c.leaving.workers_stay,
          {.text = "a signal ends only this server: workers wait up to their join_timeout for its "
                   "restart with resume"});
  s.field("stop_status", &c.leaving.stop_status,
          {.text = "exit status when a signal ends this server before the job is over; set 143 "
                   "where a scheduler should start it again",
           .max = 255});
}

/// Transfer and sum of gradients.
void register_gradients(config::Schema& s, ServerConfig& c) {
  s.section("Exchange of gradients");
  s.field(
      "exchange", &c.exchange,
      {.text = "path of the gradients: star = through this server; ring = among the workers; "
               "hierarchical = ring over machines, after a sum within each machine; auto = ring "
               "where the workers reach each other, else star",
       .choices = {"auto", "star", "ring", "hierarchical"},
       .basic = true});
  s.field("apply", &c.apply,
          {.text = "where the optimizer runs: server (workers receive parameters) or worker "
                   "(workers receive mean gradients); auto: server with exchange star and "
                   "codec_down f32, else worker",
           .choices = {"auto", "server", "worker"},
           .basic = true});
  s.field("codec_down", &c.transfer.codec_down,
          {.text = "exchange star: codec of the results, such as int8 or topk:0.01; with any codec "
                   "but f32 the workers apply the optimizer",
           .basic = true});
  s.field("policy", &c.policy,
          {.text = "when a round closes: bsp = with all contributions; backup:B = without the B "
                   "slowest; quorum:K,grace=0.5 = with K, after a grace period for others that are "
                   "expected soon; asp:max=32,power=0.5 = each contribution is a round; ssp:S = "
                   "like asp, with no worker more than S steps ahead of the slowest",
           .live = true,
           .basic = true});
  s.field("late", &c.late,
          {.text = "policy backup, quorum: use of a contribution that arrives after its round "
                   "closed: drop; carry:max=4 = count it in the open round, at most max rounds "
                   "later; damp:power=0.5,max=4 = like carry, with weight / (1 + rounds)^power"});
  s.field(
      "nonfinite", &c.nonfinite,
      {.text =
           "reaction to NaN or infinity in a gradient: halt the job, skip the round, or propagate",
       .choices = {"halt", "skip", "propagate"}});
  register_aggregate(s, c);
  s.field("replica_check_rounds", &c.replicas.check_rounds,
          {.text = "where workers apply the optimizer: compare their parameters and optimizer "
                   "state every so many versions; 0: never",
           .unit = "rounds",
           .max = 16'777'215,
           .live = true});
  s.field("replica_drift", &c.replicas.on_drift,
          {.text = "reaction to a worker whose parameters or optimizer state differ from those of "
                   "most: restore = send it the state again; halt = halt the job",
           .choices = {"restore", "halt"},
           .live = true});
  s.field("weight_by", &c.local.weight_by,
          {.text = "weight of a worker in the mean: its samples in the round, its steps, equal, or "
                   "its tokens (exchange star)",
           .choices = {"samples", "steps", "equal", "tokens"}});
  s.field(
      "payload_checksum", &c.transfer.checksum,
      {.text = "CRC-32C of contributions and results; auto: none between processes of one machine",
       .choices = {"auto", "always"}});
}

/// The optimizer in detail.
void register_optimizer(config::Schema& s, ServerConfig& c) {
  s.section("Optimizer");
  s.field("clip_norm", &c.optimizer.clip_norm,
          {.text = "maximum norm of the mean gradient over all tensors; 0: no clipping",
           .min = 0.0,
           .basic = true});
  s.field("momentum", &c.optimizer.momentum,
          {.text = "for momentum and nesterov", .min = 0.0, .max = 1.0});
  s.field("beta1", &c.optimizer.beta1,
          {.text = "for adam, adamw, yogi: decay of the first moment", .min = 0.0, .max = 1.0});
  s.field("beta2", &c.optimizer.beta2,
          {.text = "for adam, adamw, yogi: decay of the second moment", .min = 0.0, .max = 1.0});
  s.field("epsilon", &c.optimizer.epsilon,
          {.text = "for adam, adamw, yogi, adagrad: term added to the root", .min = 0.0});
  s.field("weight_decay", &c.optimizer.weight_decay,
          {.text = "L2 added to the gradient; for adamw decoupled; for ftrl its L2", .min = 0.0});
  s.field("l1", &c.optimizer.l1,
          {.text = "for ftrl: L1, which sets parameters to exactly 0", .min = 0.0});
  s.field("ftrl_beta", &c.optimizer.ftrl_beta,
          {.text = "for ftrl: term added to the root of the sum of squares; above 0", .min = 0.0});
  s.field("lr_scale_ratio", &c.optimizer_scale_ratio,
          {.text = "multiply the learning rate by 1 + (workers in the round - 1) x this, for a "
                   "batch that grows with the workers (Goyal et al. 2017); 0: no scaling",
           .min = 0.0,
           .max = 1000.0});
}

/// TLS.
void register_tls(config::Schema& s, ServerConfig& c) {
  s.section("TLS");
  s.field(
      "tls.certificate", &c.tls.certificate,
      {.text =
           "PEM file with the certificate of this server; switches on TLS for data connections"});
  s.field("tls.key", &c.tls.key, {.text = "PEM file with the private key of the certificate"});
  s.field("tls.authority", &c.tls.authority,
          {.text = "PEM file with the authority of the certificates that workers must present"});
  s.field("api.tls", &c.api.tls, {.text = "serve REST by HTTPS, with tls.certificate"});
}

/// Local steps.
void register_local_steps(config::Schema& s, ServerConfig& c) {
  s.section("Local steps");
  s.field("local_steps", &c.local.count,
          {.text = "steps of a worker with its own optimizer (inner.*) between two contributions; "
                   "1: a gradient in every step",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000,
           .basic = true});
  s.field("fragments", &c.local.fragments,
          {.text = "local steps: split the tensors into this many sets of about equal size; a "
                   "worker contributes one set every local_steps / fragments steps",
           .unit = "fragments",
           .min = 1,
           .max = 4096});
  s.field(
      "overlap", &c.local.overlap,
      {.text =
           "local steps: steps that a worker makes while its contribution and the result travel",
       .unit = "steps",
       .max = 1'000'000});
  s.field("outer", &c.local.outer,
          {.text = "local steps: use of the mean contribution: nesterov = optimizer nesterov with "
                   "lr 0.7 and momentum 0.9 (DiLoCo); average = mean of the parameters; optimizer "
                   "= the optimizer of this server",
           .choices = {"nesterov", "average", "optimizer"}});
  s.field("inner_lr", &c.local.inner_rate,
          {.text = "local steps: learning rate of the workers' optimizers, in place of their own "
                   "inner.lr; 0: each takes its own",
           .min = 0.0,
           .live = true});
}

/// Unequal workers.
void register_cadence(config::Schema& s, ServerConfig& c) {
  s.section("Unequal workers");
  s.field("cadence.mode", &c.cadence.mode,
          {.text = "division of the data of a round among unequal workers: off = the same for all; "
                   "speed = by measured speed, so that all finish together; tuned = like speed, "
                   "and local_steps follows the cost of the exchange and the divergence",
           .choices = {"off", "speed", "tuned"},
           .basic = true});
  s.field("cadence.overhead", &c.cadence.overhead,
          {.text = "cadence tuned: target time of an exchange, relative to the computing time of "
                   "the slowest worker",
           .min = 0.01,
           .max = 0.5});
  s.field("cadence.max_steps", &c.cadence.max_steps,
          {.text = "cadence tuned: maximum number of local steps of the slowest worker",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000});
  s.field("cadence.max_lead", &c.cadence.max_lead,
          {.text = "cadence: maximum number of steps that a worker makes beyond the slowest, and "
                   "maximum change of its steps from round to round; 0: the same steps for all",
           .unit = "steps",
           .max = 1'000'000});
  s.field(
      "cadence.guard", &c.cadence.guard,
      {.text = "cadence tuned: reaction to growing divergence: halve = halve the local steps after "
               "a long rise; predict = allow only as many steps as the growth rate permits",
       .choices = {"halve", "predict"}});
  s.field("cadence.ratios", &c.cadence.ratios,
          {.text = "speeds by rank, such as 3,2,1: used instead of measured speeds (cadence "
                   "speed), or until they are measured (tuned)"});
}

/// Sparse rows.
void register_tables(config::Schema& s, ServerConfig& c) {
  s.section("Embedding tables");
  s.field("tables", &c.tables,
          {.text = "embedding tables, separated by semicolons, each "
                   "NAME:dim=16,optimizer=adagrad,lr=0.01,init=zeros,seed=1,admit_after=1,max_"
                   "bytes=0,max_age=0; only dim is required",
           .basic = true});
}

/// Standbys.
void register_standbys(config::Schema& s, ServerConfig& c) {
  s.section("Standby servers");
  s.field("etcd.endpoints", &c.etcd.endpoints,
          {.text = "addresses of etcd, http://HOST:PORT or https://HOST:PORT, separated by commas; "
                   "etcd elects the leader among several servers; implies resume and "
                   "leave_workers; empty: a single server",
           .basic = true});
  s.field("etcd.authority", &c.etcd.authority,
          {.text = "etcd by https: PEM file with its authority, or system for the authorities of "
                   "this machine"});
  s.field(
      "etcd.certificate", &c.etcd.certificate,
      {.text =
           "etcd by https: PEM file with the certificate of this server, if etcd requires one"});
  s.field("etcd.key", &c.etcd.key, {.text = "PEM file with the key of etcd.certificate"});
  s.field("etcd.user", &c.etcd.user, {.text = "user name at etcd; empty: no login"});
  s.field("etcd.password", &c.etcd.password, {.text = "password at etcd", .secret = true});
  s.field("etcd.lease", &c.etcd.lease,
          {.text = "a standby takes over when the leader is silent for this long; whole seconds; "
                   "the leader renews its lease three times as often",
           .unit = "ms",
           .min = 2000,
           .max = 600'000});
  s.field(
      "cluster", &c.identity.cluster,
      {.text = "etcd: name of the cluster, the same on all its servers; letters, digits, - _ ."});
  s.field("name", &c.identity.name,
          {.text = "name of this server among several; with etcd empty means its data address; "
                   "required with join"});
  s.field("advertise", &c.identity.advertise,
          {.text = "etcd, join: HOST:PORT (etcd: also HOST) where workers reach this server, if it "
                   "differs from listen"});
}

/// Bounds and the network, which are rarely touched.
void register_bounds(config::Schema& s, ServerConfig& c) {
  s.section("Memory and network");
  s.field("memory_limit", &c.memory.limit,
          {.text = "memory that this server may use; a model that needs more is refused; 0: the "
                   "limit of the cgroup, or the physical memory",
           .unit = "bytes"});
  s.field("max_model_bytes", &c.memory.max_model_bytes,
          {.text = "largest model that is accepted", .unit = "bytes", .min = 64});
  s.field("chunk_bytes", &c.transfer.chunk_bytes,
          {.text = "largest chunk", .unit = "bytes", .min = 64, .max = 64u << 20});
  s.field("credit_bytes", &c.transfer.credit_bytes,
          {.text = "bytes of contributions that one worker may have in flight; 0: 4 MiB, less "
                   "beyond 32 workers; on a long fast link set bandwidth x round trip time",
           .unit = "bytes"});
  s.field("stall_timeout", &c.timeouts.stall,
          {.text = "close a connection that transfers no byte of a started frame for this long",
           .unit = "ms",
           .min = 100});
  s.field("congestion_control", &c.transfer.congestion_control,
          {.text = "TCP congestion control of data connections: auto (cubic on loopback), a name, "
                   "or empty for the default of the system"});
}

/// Additions among the workers.
void register_reduce(config::Schema& s, ServerConfig& c) {
  s.section("Exchange among workers");
  s.field("reduce.algorithm", &c.reduce.algorithm,
          {.text = "exchange ring: auto (by size), ring, recursive-doubling, or chain, which adds "
                   "in the order of ranks and gives the bits of star for twice the bytes of ring",
           .choices = {"auto", "ring", "recursive-doubling", "chain"}});
  s.field("reduce.ring_order", &c.reduce.ring_order,
          {.text = "exchange ring: order of the workers: by rank, or by bandwidth, which is "
                   "measured when workers join or leave (results then depend on it)",
           .choices = {"rank", "bandwidth"}});
  s.field(
      "reduce.bucket_bytes", &c.reduce.bucket_bytes,
      {.text = "exchange ring, hierarchical: smallest number of gradient bytes in one all-reduce",
       .unit = "bytes",
       .min = 64});
  s.field("reduce.timeout", &c.reduce.timeout,
          {.text = "exchange ring, hierarchical: a worker that blocks an all-reduce for this long "
                   "is reported as lost",
           .unit = "ms",
           .min = 100});
}

/// The trace.
void register_trace(config::Schema& s, ServerConfig& c) {
  s.section("Trace");
  s.field("trace.file", &c.trace.file,
          {.text = "write a trace of this process to this JSON file, for Perfetto and "
                   "chrome://tracing; empty: only the newest spans are kept in memory"});
  s.field("trace.limit", &c.trace.limit,
          {.text = "largest size of trace.file; later spans are dropped", .unit = "bytes"});
}
}  // namespace

void register_fields(config::Schema& s, ServerConfig& c) {
  register_endpoints(s, c);
  register_job(s, c);
  register_files(s, c);
  register_log(s, c);
  register_membership(s, c);
  register_gradients(s, c);
  register_optimizer(s, c);
  register_tls(s, c);
  register_local_steps(s, c);
  register_cadence(s, c);
  register_tables(s, c);
  register_servers(s, c);
  register_standbys(s, c);
  register_bounds(s, c);
  register_reduce(s, c);
  register_api(s, c);
  register_trace(s, c);
}
}  // namespace centroid::server
