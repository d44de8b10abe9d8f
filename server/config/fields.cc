#include "server/config/server_config.h"

/// Every setting of the server, in the order of --help: what a first job needs stands first.
namespace centroid::server {

namespace {

/// Where it is reached, and by whom.
void register_endpoints(config::Schema& s, ServerConfig& c) {
  s.field("listen", &c.listen,
          {.text = "where workers connect, HOST:PORT; port 0 takes a free one"});
  s.field("token", &c.token,
          {.text = "shared secret that workers must show; needed beyond loopback", .secret = true});
  s.field("api.listen", &c.api.listen, {.text = "where REST and metrics are served, HOST:PORT"},
          "api");
  s.field("api.token", &c.api.token,
          {.text = "bearer token of REST; needed beyond loopback", .secret = true});
  s.field("api.viewer_token", &c.api.viewer_token,
          {.text = "another token of REST, which may only read: for Prometheus and for people who "
                   "look",
           .secret = true});
  s.field("endpoints_file", &c.endpoints_file,
          {.text = "write the real endpoints to this JSON file once both listen"},
          "endpoints-file");
}

/// The job.
void register_job(config::Schema& s, ServerConfig& c) {
  s.field("min_workers", &c.workers.min,
          {.text = "workers to wait for before the first round",
           .unit = "workers",
           .min = 1,
           .live = true},
          "min-workers");
  s.field(
      "epochs", &c.goal.epochs,
      {.text = "passes over the data to train for; 0: no limit", .unit = "epochs", .live = true});
  s.field("rounds", &c.goal.rounds,
          {.text = "rounds to train for; 0: no limit", .unit = "rounds", .live = true});
  s.field(
      "optimizer.name", &c.optimizer.name,
      {.text = "update rule; mean: the mean is taken off as it is", .choices = optimizer_names()},
      "optimizer");
  s.field("optimizer.learning_rate", &c.optimizer.learning_rate,
          {.text = "step size", .min = 0.0, .live = true}, "lr");
  s.field("optimizer.schedule", &c.optimizer.schedule,
          {.text = "factor on the learning rate by committed rounds: constant, "
                   "step:every=N,factor=0.1, linear:rounds=N, cosine:rounds=N, each with "
                   "warmup=N,floor=F, or onecycle:rounds=N,rise=0.3,start=0.04 "
                   "(docs/optimizers.md)",
           .live = true},
          "lr-schedule");
  s.field("init", &c.init,
          {.text = "first-worker, or a safetensors file with the initial parameters"});
  s.field("seed", &c.seed, {.text = "seed of initial parameters, data order and data split"});
  s.field(
      "exit_when_finished", &c.leaving.when_finished,
      {.text = "leave when the goal is reached or the job halted; otherwise REST stays up, and a "
               "halt holds until it is taken back",
       .live = true},
      "exit-when-finished");
}

/// What it leaves on the disk.
void register_files(config::Schema& s, ServerConfig& c) {
  s.field("run_dir", &c.run_dir, {.text = "folder of this training's files"}, "run-dir");
  s.field(
      "run_id", &c.run_id,
      {.text = "name of this training; drawn when empty, taken from the checkpoint with `resume`"},
      "run-id");
  register_durability(s, c);
}

/// What it tells.
void register_log(config::Schema& s, ServerConfig& c) {
  s.field("log.level", &c.log.level,
          {.text = "least level to log",
           .choices = {"trace", "debug", "info", "warn", "error", "off"},
           .live = true},
          "log-level");
  s.field("log.format", &c.log.format, {.text = "form of a log line", .choices = {"text", "json"}},
          "log-format");
}

/// Workers that come, go and are slow.
void register_membership(config::Schema& s, ServerConfig& c) {
  s.field("max_workers", &c.workers.max,
          {.text = "workers the cluster takes at most",
           .unit = "workers",
           .min = 1,
           .max = 16384,
           .live = true},
          "max-workers");
  s.field("keep_min_workers", &c.workers.keep_min,
          {.text = "with fewer workers than this no round begins: the job waits until so many are "
                   "here, instead of going on with those that are left; 0: it goes on",
           .unit = "workers",
           .live = true},
          "keep-min-workers");
  s.field("lease", &c.timeouts.lease,
          {.text = "silence after which a worker is dead",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field(
      "round_timeout", &c.timeouts.round,
      {.text =
           "policy bsp, exchange star: a round in which a worker that lives has contributed "
           "nothing for so long is repeated without it (who came a little late before has up to "
           "four times as long); 0: it is waited for",
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
          {.text = "a signal ends only this server: workers are not told that the job is over, but "
                   "wait for it to come back with `resume`, as long as their join_timeout"},
          "leave-workers");
  s.field("stop_status", &c.leaving.stop_status,
          {.text = "exit status after a signal asked this server to leave and the job is not over; "
                   "other than 0 where a scheduler should start it again, e.g. 143",
           .max = 255},
          "stop-status");
}

/// How gradients travel and are added.
void register_gradients(config::Schema& s, ServerConfig& c) {
  s.field(
      "exchange", &c.exchange,
      {.text = "how gradients are added: star = through this server; ring = by the workers among "
               "themselves; hierarchical = as ring, the workers of one machine first",
       .choices = {"star", "ring", "hierarchical"}});
  s.field(
      "apply", &c.apply,
      {.text =
           "who applies the optimizer: the server (results are parameters) or every worker "
           "(results are mean gradients); auto: the server with star and codec_down f32, else the "
           "workers",
       .choices = {"auto", "server", "worker"}});
  s.field("codec_down", &c.transfer.codec_down,
          {.text = "exchange star: form of the results on the wire, a codec of docs/compression.md "
                   "such as topk:0.01; with another than f32 every worker applies the optimizer"},
          "codec-down");
  s.field(
      "policy", &c.policy,
      {.text =
           "when a round closes: bsp = when every worker has contributed; backup:B = without the "
           "B slowest; quorum:K,grace=0.5 = when K have, and others that are expected soon had "
           "their time, at most `grace` of the time that the K took; asp:max=32,power=0.5 = each "
           "contribution is a round; ssp:S = so too, nobody more than S steps ahead of the slowest "
           "(docs/policies.md)",
       .live = true});
  s.field(
      "late", &c.late,
      {.text = "policy backup, quorum: what becomes of a contribution whose round closed without "
               "it: drop; carry:max=4 = it counts in the round then open, if that is at most "
               "`max` later; damp:power=0.5,max=4 = so too, its weight / (1 + rounds)^power"});
  s.field(
      "nonfinite", &c.nonfinite,
      {.text = "what a gradient with NaN or infinity does: stop the job, skip the round, or go in",
       .choices = {"halt", "skip", "propagate"}});
  register_aggregate(s, c);
  s.field("weight_by", &c.local.weight_by,
          {.text = "what a worker weighs in the mean: its samples in the round, its steps, as much "
                   "as any other, or the tokens that it judged there (exchange star)",
           .choices = {"samples", "steps", "equal", "tokens"}},
          "weight-by");
  s.field(
      "payload_checksum", &c.transfer.checksum,
      {.text = "CRC-32C of contributions and results; auto: not between processes of one machine",
       .choices = {"auto", "always"}},
      "payload-checksum");
}

/// The optimizer in detail.
void register_optimizer(config::Schema& s, ServerConfig& c) {
  s.field("optimizer.clip_norm", &c.optimizer.clip_norm,
          {.text = "bound of the norm of the mean gradient over all tensors; 0: none", .min = 0.0},
          "clip-norm");
  s.field("optimizer.momentum", &c.optimizer.momentum,
          {.text = "momentum, nesterov", .min = 0.0, .max = 1.0});
  s.field("optimizer.beta1", &c.optimizer.beta1,
          {.text = "adam, adamw, yogi: decay of the first moment", .min = 0.0, .max = 1.0});
  s.field("optimizer.beta2", &c.optimizer.beta2,
          {.text = "adam, adamw, yogi: decay of the second moment", .min = 0.0, .max = 1.0});
  s.field("optimizer.epsilon", &c.optimizer.epsilon,
          {.text = "adam, adamw, yogi, adagrad: added to the root", .min = 0.0});
  s.field("optimizer.weight_decay", &c.optimizer.weight_decay,
          {.text = "L2 added to the gradient; decoupled for adamw; ftrl: its L2", .min = 0.0});
  s.field("optimizer.l1", &c.optimizer.l1,
          {.text = "ftrl: L1, which makes parameters exactly 0", .min = 0.0});
  s.field("optimizer.ftrl_beta", &c.optimizer.ftrl_beta,
          {.text = "ftrl: added to the root of the sum of squares; above 0", .min = 0.0});
  s.field(
      "optimizer.scale_ratio", &c.optimizer_scale_ratio,
      {.text = "the step size of a round is multiplied with 1 + (workers - 1) x this, the workers "
               "being those whose contributions it has, for a batch that grows with them (Goyal et "
               "al. 2017); 0: it is as given",
       .min = 0.0,
       .max = 1000.0});
}

/// TLS.
void register_tls(config::Schema& s, ServerConfig& c) {
  s.field(
      "tls.certificate", &c.tls.certificate,
      {.text = "PEM file with this server's certificate: data connections are TLS (docs/tls.md)"},
      "tls-certificate");
  s.field("tls.key", &c.tls.key, {.text = "PEM file with the certificate's private key"},
          "tls-key");
  s.field("tls.authority", &c.tls.authority,
          {.text = "PEM file with who signs workers' certificates: they must show one"},
          "tls-authority");
  s.field("api.tls", &c.api.tls, {.text = "REST is HTTPS, with tls.certificate (docs/tls.md)"},
          "api-tls");
}

/// Local steps.
void register_local_steps(config::Schema& s, ServerConfig& c) {
  s.field("local_steps", &c.local.count,
          {.text = "steps that a worker makes by itself, with its own optimizer (its --inner-...), "
                   "before it contributes what they have changed (docs/low-communication.md); 1: a "
                   "gradient every step",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000},
          "local-steps");
  s.field("fragments", &c.local.fragments,
          {.text = "local_steps: sets of tensors of about equal size, of which one is contributed "
                   "every local_steps / fragments steps",
           .unit = "fragments",
           .min = 1,
           .max = 4096});
  s.field("overlap", &c.local.overlap,
          {.text = "local_steps: steps that are made while a contribution and its result travel",
           .unit = "steps",
           .max = 1'000'000});
  s.field("outer", &c.local.outer,
          {.text = "local_steps: what is done with the mean of the contributions: nesterov = "
                   "optimizer nesterov with learning rate 0.7 and momentum 0.9 (DiLoCo); average = "
                   "the parameters become the workers' mean; optimizer = as optimizer.* say",
           .choices = {"nesterov", "average", "optimizer"}});
}

/// Unequal workers.
void register_cadence(config::Schema& s, ServerConfig& c) {
  s.field(
      "cadence.mode", &c.cadence.mode,
      {.text = "how the data of a round is divided among unequal workers (docs/coordinator.md): "
               "off = a batch (or local_steps batches) each; speed = by measured speed, so "
               "that all are done at the same time; tuned = so too, and local_steps, those of "
               "the slowest at first, follow the cost of the exchange and the divergence",
       .choices = {"off", "speed", "tuned"}},
      "cadence");
  s.field("cadence.overhead", &c.cadence.overhead,
          {.text = "cadence tuned: time of an exchange that is wanted, as a part of the slowest "
                   "worker's computing",
           .min = 0.01,
           .max = 0.5});
  s.field("cadence.max_steps", &c.cadence.max_steps,
          {.text = "cadence tuned: most local steps of the slowest worker",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000});
  s.field("cadence.max_lead", &c.cadence.max_lead,
          {.text = "cadence: steps that a worker makes more than the slowest at most, and by which "
                   "its number changes from round to round at most, up and down; 0: all make the "
                   "same",
           .unit = "steps",
           .max = 1'000'000});
  s.field("cadence.dead_zone", &c.cadence.dead_zone,
          {.text = "cadence: relative change of a worker's speed that changes nothing",
           .min = 0.0,
           .max = 1.0});
  s.field("cadence.divergence", &c.cadence.divergence,
          {.text = "cadence tuned: |own - mean| / |mean| of a worker's parameters above which a "
                   "rise, round after round, stops growth and then halves the steps; 0: never",
           .min = 0.0});
  s.field("cadence.guard", &c.cadence.guard,
          {.text = "cadence tuned: what bounds the divergence. halve: the local steps, when it has "
                   "risen for long; predict: at most so many steps as its growth allows",
           .choices = {"halve", "predict"}});
  s.field("cadence.ratios", &c.cadence.ratios,
          {.text = "given speeds by rank, such as 3,2,1: with cadence speed instead of measured "
                   "ones, with tuned until they are measured"});
  s.field("cadence.overshoot", &c.cadence.overshoot,
          {.text = "cadence with local_steps: steps of a worker by which a round may run into the "
                   "next epoch, so that no round is short because an epoch ends; 0: 2 to 10, by "
                   "the size of an epoch, more while rounds are stable",
           .unit = "steps",
           .max = 1'000'000});
}

/// Sparse rows.
void register_tables(config::Schema& s, ServerConfig& c) {
  s.field("tables", &c.tables,
          {.text = "tables of sparse rows, separated by ';', each NAME:dim=16,optimizer=adagrad,"
                   "lr=0.01,init=zeros,seed=1,admit_after=1,max_bytes=0,max_age=0 with more in "
                   "docs/rows.md; all but dim may be left out"});
}

/// Standbys.
void register_standbys(config::Schema& s, ServerConfig& c) {
  s.field("etcd.endpoints", &c.etcd.endpoints,
          {.text = "several servers, of which one leads: where etcd answers, http://HOST:PORT or "
                   "https://HOST:PORT, separated by commas; implies resume and leave_workers; "
                   "empty: this server is alone (docs/high-availability.md)"},
          "etcd");
  s.field("etcd.authority", &c.etcd.authority,
          {.text = "etcd, https: PEM file with who signs its certificates, or system for the "
                   "authorities this machine trusts"});
  s.field(
      "etcd.certificate", &c.etcd.certificate,
      {.text = "etcd, https: PEM file with this server's certificate, where etcd asks for one"});
  s.field("etcd.key", &c.etcd.key, {.text = "PEM file with the key of etcd.certificate"});
  s.field("etcd.user", &c.etcd.user, {.text = "user name at etcd; empty: it wants none"});
  s.field("etcd.password", &c.etcd.password, {.text = "password at etcd", .secret = true});
  s.field(
      "etcd.lease", &c.etcd.lease,
      {.text = "etcd: silence of the leader after which a standby takes over, in whole seconds; "
               "renewed three times as often",
       .unit = "ms",
       .min = 2000,
       .max = 600'000},
      "etcd-lease");
  s.field("cluster", &c.identity.cluster,
          {.text = "etcd: name of the cluster, the same for its servers: letters, digits, - _ ."});
  s.field(
      "name", &c.identity.name,
      {.text = "etcd: name of this server, empty: its data endpoint; several servers: name among "
               "those that the model lies on, needed with `join`"});
  s.field(
      "advertise", &c.identity.advertise,
      {.text = "etcd, join: HOST:PORT (with etcd also HOST) by which workers reach this server, "
               "when it is not `listen`"});
}

/// Bounds and the network, which are rarely touched.
void register_bounds(config::Schema& s, ServerConfig& c) {
  s.field(
      "memory_limit", &c.memory.limit,
      {.text = "what this server may need; a model that needs more is refused with both numbers; "
               "0: the cgroup's limit, or the physical memory",
       .unit = "bytes"},
      "memory-limit");
  s.field("max_model_bytes", &c.memory.max_model_bytes,
          {.text = "largest model a worker may bring; the server needs 2 planes of it and one per "
                   "optimizer slot",
           .unit = "bytes",
           .min = 64},
          "max-model-bytes");
  s.field("chunk_bytes", &c.transfer.chunk_bytes,
          {.text = "largest chunk", .unit = "bytes", .min = 64, .max = 64u << 20}, "chunk-bytes");
  s.field("credit_bytes", &c.transfer.credit_bytes,
          {.text = "contribution bytes one worker may have waiting here; 0: 4 MiB, less beyond 32 "
                   "workers; on long fat links bandwidth times round trip",
           .unit = "bytes"});
  s.field("stall_timeout", &c.timeouts.stall,
          {.text = "a connection that moves no byte of a begun frame for so long ends",
           .unit = "ms",
           .min = 100});
  s.field("congestion_control", &c.transfer.congestion_control,
          {.text = "TCP congestion control of data connections: auto (cubic on loopback), a name, "
                   "or empty for the system's"});
}

/// Additions among the workers.
void register_reduce(config::Schema& s, ServerConfig& c) {
  s.field(
      "reduce.algorithm", &c.reduce.algorithm,
      {.text = "exchange ring: auto (by size), ring, recursive-doubling, or chain, which adds in "
               "the order of ranks: the bits of star, for twice the bytes of ring",
       .choices = {"auto", "ring", "recursive-doubling", "chain"}});
  s.field(
      "reduce.ring_order", &c.reduce.ring_order,
      {.text = "exchange ring: the workers stand in the ring by rank, or so that its slowest hop "
               "is fastest, measured whenever workers come or go (bits then depend on it)",
       .choices = {"rank", "bandwidth"}});
  s.field("reduce.bucket_bytes", &c.reduce.bucket_bytes,
          {.text = "exchange ring, hierarchical: least gradient bytes of one addition",
           .unit = "bytes",
           .min = 64});
  s.field("reduce.timeout", &c.reduce.timeout,
          {.text = "exchange ring, hierarchical: a worker that others wait for in an addition for "
                   "so long is "
                   "reported as lost",
           .unit = "ms",
           .min = 100});
}

/// The trace.
void register_trace(config::Schema& s, ServerConfig& c) {
  s.field("trace.file", &c.trace.file,
          {.text = "write what this process does when to this file, as JSON that Perfetto and "
                   "chrome://tracing read; empty: nowhere (the newest is kept in memory anyhow)"},
          "trace");
  s.field("trace.limit", &c.trace.limit,
          {.text = "largest size of trace.file; later spans are left out", .unit = "bytes"});
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
