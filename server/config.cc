#include "server/config.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/base/log.h"
#include "common/codec/spec.h"
#include "server/aggregate/round_policy.h"
#include "server/election/etcd_client.h"
#include "server/rows/row_spec.h"

namespace centroid::server {

void register_fields(config::Schema& s, ServerConfig& c) {
  s.field("listen", &c.listen,
          {.text = "where workers connect, HOST:PORT; port 0 takes a free one"});
  s.field("trace.file", &c.trace_file,
          {.text = "write what this process does when to this file, as JSON that Perfetto and "
                   "chrome://tracing read; empty: nowhere (the newest is kept in memory anyhow)"},
          "trace");
  s.field("trace.limit", &c.trace_limit,
          {.text = "largest size of trace.file; later spans are left out", .unit = "bytes"});
  s.field("tables", &c.tables,
          {.text = "tables of sparse rows, separated by ';', each NAME:dim=16,optimizer=adagrad,"
                   "lr=0.01,init=zeros,seed=1,admit_after=1,max_bytes=0,max_age=0 with more in "
                   "docs/rows.md; all but dim may be left out"});
  register_servers(s, c);
  register_api(s, c);
  s.field("token", &c.token,
          {.text = "shared secret that workers must show; needed beyond loopback", .secret = true});
  s.field("endpoints_file", &c.endpoints_file,
          {.text = "write the real endpoints to this JSON file once both listen"},
          "endpoints-file");
  s.field(
      "run_id", &c.run_id,
      {.text = "name of this training; drawn when empty, taken from the checkpoint with `resume`"},
      "run-id");
  s.field("run_dir", &c.run_dir, {.text = "folder of this training's files"}, "run-dir");
  s.field("log.level", &c.log_level,
          {.text = "least level to log",
           .choices = {"trace", "debug", "info", "warn", "error", "off"},
           .live = true},
          "log-level");
  s.field("log.format", &c.log_format, {.text = "form of a log line", .choices = {"text", "json"}},
          "log-format");

  s.field("min_workers", &c.min_workers,
          {.text = "workers to wait for before the first round",
           .unit = "workers",
           .min = 1,
           .live = true},
          "min-workers");
  s.field("keep_min_workers", &c.keep_min_workers,
          {.text = "with fewer workers than this no round begins: the job waits until so many are "
                   "here, instead of going on with those that are left; 0: it goes on",
           .unit = "workers",
           .live = true},
          "keep-min-workers");
  s.field("max_workers", &c.max_workers,
          {.text = "workers the cluster takes at most",
           .unit = "workers",
           .min = 1,
           .max = 4096,
           .live = true},
          "max-workers");
  s.field(
      "epochs", &c.epochs,
      {.text = "passes over the data to train for; 0: no limit", .unit = "epochs", .live = true});
  s.field("rounds", &c.rounds,
          {.text = "rounds to train for; 0: no limit", .unit = "rounds", .live = true});
  s.field("seed", &c.seed, {.text = "seed of initial parameters, data order and data split"});
  s.field(
      "exit_when_finished", &c.exit_when_finished,
      {.text = "leave when the goal is reached or the job halted; otherwise REST stays up, and a "
               "halt holds until it is taken back",
       .live = true},
      "exit-when-finished");
  s.field("leave_workers", &c.leave_workers,
          {.text = "a signal ends only this server: workers are not told that the job is over, but "
                   "wait for it to come back with `resume`, as long as their join_timeout"},
          "leave-workers");
  s.field("stop_status", &c.stop_status,
          {.text = "exit status after a signal asked this server to leave and the job is not over; "
                   "other than 0 where a scheduler should start it again, e.g. 143",
           .max = 255},
          "stop-status");

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
  s.field("local_steps", &c.local_steps,
          {.text = "steps that a worker makes by itself, with its own optimizer (its --inner-...), "
                   "before it contributes what they have changed (docs/low-communication.md); 1: a "
                   "gradient every step",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000},
          "local-steps");
  s.field("fragments", &c.fragments,
          {.text = "local_steps: sets of tensors of about equal size, of which one is contributed "
                   "every local_steps / fragments steps",
           .unit = "fragments",
           .min = 1,
           .max = 4096});
  s.field("overlap", &c.overlap,
          {.text = "local_steps: steps that are made while a contribution and its result travel",
           .unit = "steps",
           .max = 1'000'000});
  s.field("outer", &c.outer,
          {.text = "local_steps: what is done with the mean of the contributions: nesterov = "
                   "optimizer nesterov with learning rate 0.7 and momentum 0.9 (DiLoCo); average = "
                   "the parameters become the workers' mean; optimizer = as optimizer.* say",
           .choices = {"nesterov", "average", "optimizer"}});
  s.field("weight_by", &c.weight_by,
          {.text = "what a worker weighs in the mean: its samples in the round, its steps, as much "
                   "as any other, or the tokens that it judged there (exchange star)",
           .choices = {"samples", "steps", "equal", "tokens"}},
          "weight-by");
  s.field(
      "cadence.mode", &c.cadence_mode,
      {.text = "how the data of a round is divided among unequal workers (docs/coordinator.md): "
               "off = a batch (or local_steps batches) each; speed = by measured speed, so "
               "that all are done at the same time; tuned = so too, and local_steps, those of "
               "the slowest at first, follow the cost of the exchange and the divergence",
       .choices = {"off", "speed", "tuned"}},
      "cadence");
  s.field("cadence.overhead", &c.cadence_overhead,
          {.text = "cadence tuned: time of an exchange that is wanted, as a part of the slowest "
                   "worker's computing",
           .min = 0.01,
           .max = 0.5});
  s.field("cadence.max_steps", &c.cadence_max_steps,
          {.text = "cadence tuned: most local steps of the slowest worker",
           .unit = "steps",
           .min = 1,
           .max = 1'000'000});
  s.field("cadence.max_lead", &c.cadence_max_lead,
          {.text = "cadence: steps that a worker makes more than the slowest at most, and by which "
                   "its number changes from round to round at most, up and down; 0: all make the "
                   "same",
           .unit = "steps",
           .max = 1'000'000});
  s.field("cadence.dead_zone", &c.cadence_dead_zone,
          {.text = "cadence: relative change of a worker's speed that changes nothing",
           .min = 0.0,
           .max = 1.0});
  s.field("cadence.divergence", &c.cadence_divergence,
          {.text = "cadence tuned: |own - mean| / |mean| of a worker's parameters above which a "
                   "rise, round after round, stops growth and then halves the steps; 0: never",
           .min = 0.0});
  s.field("cadence.guard", &c.cadence_guard,
          {.text = "cadence tuned: what bounds the divergence. halve: the local steps, when it has "
                   "risen for long; predict: at most so many steps as its growth allows",
           .choices = {"halve", "predict"}});
  s.field("cadence.ratios", &c.cadence_ratios,
          {.text = "given speeds by rank, such as 3,2,1: with cadence speed instead of measured "
                   "ones, with tuned until they are measured"});
  s.field("cadence.overshoot", &c.cadence_overshoot,
          {.text = "cadence with local_steps: steps of a worker by which a round may run into the "
                   "next epoch, so that no round is short because an epoch ends; 0: 2 to 10, by "
                   "the size of an epoch, more while rounds are stable",
           .unit = "steps",
           .max = 1'000'000});
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
  s.field("codec_down", &c.codec_down,
          {.text = "exchange star: form of the results on the wire, a codec of docs/compression.md "
                   "such as topk:0.01; with another than f32 every worker applies the optimizer"},
          "codec-down");
  s.field(
      "payload_checksum", &c.payload_checksum,
      {.text = "CRC-32C of contributions and results; auto: not between processes of one machine",
       .choices = {"auto", "always"}},
      "payload-checksum");
  register_aggregate(s, c);
  s.field("sum_order", &c.sum_order,
          {.text = "order of additions: by rank (bits repeat from run to run) or on arrival",
           .choices = {"rank", "arrival"}},
          "sum-order");
  s.field(
      "reduce.algorithm", &c.reduce_algorithm,
      {.text = "exchange ring: auto (by size), ring, recursive-doubling, or chain, which adds in "
               "the order of ranks: the bits of star, for twice the bytes of ring",
       .choices = {"auto", "ring", "recursive-doubling", "chain"}});
  s.field(
      "reduce.ring_order", &c.reduce_ring_order,
      {.text = "exchange ring: the workers stand in the ring by rank, or so that its slowest hop "
               "is fastest, measured whenever workers come or go (bits then depend on it)",
       .choices = {"rank", "bandwidth"}});
  s.field("reduce.bucket_bytes", &c.reduce_bucket_bytes,
          {.text = "exchange ring, hierarchical: least gradient bytes of one addition",
           .unit = "bytes",
           .min = 64});
  s.field("reduce.timeout", &c.reduce_timeout,
          {.text = "exchange ring, hierarchical: a worker that others wait for in an addition for "
                   "so long is "
                   "reported as lost",
           .unit = "ms",
           .min = 100});
  s.field(
      "nonfinite", &c.nonfinite,
      {.text = "what a gradient with NaN or infinity does: stop the job, skip the round, or go in",
       .choices = {"halt", "skip", "propagate"}});
  s.field(
      "optimizer.name", &c.optimizer.name,
      {.text = "update rule; mean: the mean is taken off as it is", .choices = optimizer_names()},
      "optimizer");
  s.field("optimizer.learning_rate", &c.optimizer.learning_rate,
          {.text = "step size", .min = 0.0, .live = true}, "lr");
  s.field(
      "optimizer.scale_ratio", &c.optimizer_scale_ratio,
      {.text = "the step size of a round is multiplied with 1 + (workers - 1) x this, the workers "
               "being those whose contributions it has, for a batch that grows with them (Goyal et "
               "al. 2017); 0: it is as given",
       .min = 0.0,
       .max = 1000.0});
  s.field("optimizer.schedule", &c.optimizer.schedule,
          {.text = "factor on the learning rate by committed rounds: constant, "
                   "step:every=N,factor=0.1, linear:rounds=N, cosine:rounds=N, each with "
                   "warmup=N,floor=F, or onecycle:rounds=N,rise=0.3,start=0.04 "
                   "(docs/optimizers.md)",
           .live = true},
          "lr-schedule");
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
  s.field("chunk_bytes", &c.chunk_bytes,
          {.text = "largest chunk", .unit = "bytes", .min = 64, .max = 64u << 20}, "chunk-bytes");
  s.field("credit_bytes", &c.credit_bytes,
          {.text = "contribution bytes one worker may have waiting here; 0: 4 MiB, less beyond 32 "
                   "workers; on long fat links bandwidth times round trip",
           .unit = "bytes"});
  s.field("max_model_bytes", &c.max_model_bytes,
          {.text = "largest model a worker may bring; the server needs 2 planes of it and one per "
                   "optimizer slot",
           .unit = "bytes",
           .min = 64},
          "max-model-bytes");
  s.field(
      "memory_limit", &c.memory_limit,
      {.text = "what this server may need; a model that needs more is refused with both numbers; "
               "0: the cgroup's limit, or the physical memory",
       .unit = "bytes"},
      "memory-limit");
  s.field("init", &c.init,
          {.text = "first-worker, or a safetensors file with the initial parameters"});

  s.field("lease", &c.lease,
          {.text = "silence after which a worker is dead",
           .unit = "ms",
           .min = 100,
           .max = 3'600'000,
           .live = true});
  s.field("drain_timeout", &c.drain_timeout,
          {.text = "how long a stop waits for the open round and for workers to leave",
           .unit = "ms",
           .min = 0,
           .live = true});
  s.field(
      "round_timeout", &c.round_timeout,
      {.text =
           "policy bsp, exchange star: a round in which a worker that lives has contributed "
           "nothing for so long is repeated without it (who came a little late before has up to "
           "four times as long); 0: it is waited for",
       .unit = "ms",
       .min = 0,
       .max = 86'400'000,
       .live = true});
  s.field("stall_timeout", &c.stall_timeout,
          {.text = "a connection that moves no byte of a begun frame for so long ends",
           .unit = "ms",
           .min = 100});
  s.field("congestion_control", &c.congestion_control,
          {.text = "TCP congestion control of data connections: auto (cubic on loopback), a name, "
                   "or empty for the system's"});

  s.field(
      "tls.certificate", &c.tls_certificate,
      {.text = "PEM file with this server's certificate: data connections are TLS (docs/tls.md)"},
      "tls-certificate");
  s.field("tls.key", &c.tls_key, {.text = "PEM file with the certificate's private key"},
          "tls-key");
  s.field("tls.authority", &c.tls_authority,
          {.text = "PEM file with who signs workers' certificates: they must show one"},
          "tls-authority");

  register_durability(s, c);

  s.field("etcd.endpoints", &c.etcd,
          {.text = "several servers, of which one leads: where etcd answers, http://HOST:PORT or "
                   "https://HOST:PORT, separated by commas; implies resume and leave_workers; "
                   "empty: this server is alone (docs/high-availability.md)"},
          "etcd");
  s.field("etcd.authority", &c.etcd_authority,
          {.text = "etcd, https: PEM file with who signs its certificates, or system for the "
                   "authorities this machine trusts"});
  s.field(
      "etcd.certificate", &c.etcd_certificate,
      {.text = "etcd, https: PEM file with this server's certificate, where etcd asks for one"});
  s.field("etcd.key", &c.etcd_key, {.text = "PEM file with the key of etcd.certificate"});
  s.field("etcd.user", &c.etcd_user, {.text = "user name at etcd; empty: it wants none"});
  s.field("etcd.password", &c.etcd_password, {.text = "password at etcd", .secret = true});
  s.field(
      "etcd.lease", &c.etcd_lease,
      {.text = "etcd: silence of the leader after which a standby takes over, in whole seconds; "
               "renewed three times as often",
       .unit = "ms",
       .min = 2000,
       .max = 600'000},
      "etcd-lease");
  s.field("cluster", &c.cluster,
          {.text = "etcd: name of the cluster, the same for its servers: letters, digits, - _ ."});
  s.field(
      "name", &c.name,
      {.text = "etcd: name of this server, empty: its data endpoint; several servers: name among "
               "those that the model lies on, needed with `join`"});
  s.field(
      "advertise", &c.advertise,
      {.text = "etcd, join: HOST:PORT (with etcd also HOST) by which workers reach this server, "
               "when it is not `listen`"});
}

namespace {

Status check_codec_down(ServerConfig& c) {
  auto parsed = CodecSpec::parse(c.codec_down);
  if (!parsed.ok()) return std::move(parsed).error().with_context("codec_down");
  c.codec_down = parsed->to_string();
  if (!c.compresses_results()) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "codec_down " + c.codec_down + ": " + why);
  };
  if (c.fragments > 1 && parsed->scope == Scope::kGlobal)
    return refuse(
        "it selects from all tensors at once, which come in fragments: leave scope=global away");
  if (c.is_peer_to_peer())
    return refuse(
        "with exchange " + c.exchange +
        " no result goes through the server: leave codec_down f32, or take exchange star");
  if (c.apply == "server")
    return refuse(
        "what is compressed are mean gradients, so the workers must apply them: set apply to "
        "worker or auto (apply is server), or codec_down to f32");
  if (parsed->feedback.momentum != 0 || parsed->feedback.clip != 0)
    return refuse(
        "momentum and clip correct a worker's own gradient: leave them to the workers' codec");
  if (parsed->kind == CodecSpec::Kind::kF16 && parsed->feedback.enabled)
    return refuse("f16 with feedback=on cannot send a mean beyond 65504: take bf16:feedback=on");
  return {};
}

/// Settings of rounds of local steps, and the optimizer that `outer` stands for.
Status check_local_steps(ServerConfig& c) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  const std::string steps = "local_steps " + std::to_string(c.local_steps);
  if (c.local_steps == 1) {
    if (c.fragments != 1 || c.overlap != 0)
      return refuse(
          "fragments and overlap are for rounds of local steps: set local_steps, or "
          "leave fragments 1 and overlap 0");
    return {};
  }
  if (c.local_steps % c.fragments != 0)
    return refuse(steps + " is no multiple of fragments " + std::to_string(c.fragments) +
                  ": a fragment is contributed every local_steps / fragments steps");
  if (c.overlap >= c.steps_per_round())
    return refuse("overlap " + std::to_string(c.overlap) +
                  " must be below local_steps / fragments, " + std::to_string(c.steps_per_round()) +
                  ": a round ends before the next begins");
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  if (policy.applies_each() && (c.fragments > 1 || c.overlap > 0))
    return refuse(
        "policy " + c.policy +
        ": a contribution comes when others have moved on, so fragments cannot take turns "
        "and nothing can be made meanwhile: leave fragments 1 and overlap 0");
  if (c.fragments > 1 && policy.is_elastic() && c.late != "drop")
    return refuse(
        "late " + c.late +
        ": the fragment of a late contribution is not the one of a later round: leave late "
        "drop, or fragments 1");
  if (c.outer == "optimizer") return {};
  OptimizerConfig wanted = c.optimizer;
  wanted.name = c.outer == "average" ? "mean" : "nesterov";
  wanted.learning_rate = c.outer == "average" ? 1.0 : 0.7;
  wanted.momentum = 0.9;
  wanted.weight_decay = 0;
  const auto is_same = [&](const OptimizerConfig& other) {
    return c.optimizer.name == other.name && c.optimizer.learning_rate == other.learning_rate &&
           c.optimizer.momentum == other.momentum && c.optimizer.weight_decay == other.weight_decay;
  };
  if (!is_same(OptimizerConfig()) && !is_same(wanted))
    return refuse(
        steps + " with outer " + c.outer +
        " sets the optimizer by itself: leave optimizer.name, learning_rate, momentum and "
        "weight_decay, or take outer optimizer");
  c.optimizer = wanted;
  return {};
}

}  // namespace

namespace {

Status check_election(ServerConfig& c) {
  if (!c.has_election()) return {};
  const auto is_plain = [](char x) {
    return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '-' ||
           x == '_' || x == '.';
  };
  if (c.cluster.empty() || c.cluster.size() > 128 || !std::ranges::all_of(c.cluster, is_plain))
    return Error(ErrorCode::kInvalidArgument,
                 "cluster '" + c.cluster + "': expected 1 to 128 letters, digits, - _ and .");
  if (!std::ranges::all_of(c.name, is_plain) || c.name.size() > 128)
    return Error(ErrorCode::kInvalidArgument,
                 "name '" + c.name + "': expected at most 128 letters, digits, - _ and .");
  if (c.etcd_lease.count() % 1000 != 0)
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.lease " + std::to_string(c.etcd_lease.count()) +
                     " ms: etcd counts leases in whole seconds, take a multiple of 1000");
  CENTROID_ASSIGN(const auto endpoints, parse_etcd_endpoints(c.etcd));
  const auto is_secure = [](const std::string& one) { return one.starts_with("https://"); };
  if (c.etcd_certificate.empty() != c.etcd_key.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.certificate and etcd.key belong together: one is set, the other is not");
  if (!c.etcd_certificate.empty() && !std::ranges::any_of(endpoints, is_secure))
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.certificate is shown to an etcd with TLS: take https:// in etcd.endpoints");
  c.resume = c.leave_workers = true;
  if (c.run_id.empty()) c.run_id = c.cluster;
  return {};
}

}  // namespace

namespace {

Status check_cadence(const ServerConfig& c) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  auto ratios = parse_ratios(c.cadence_ratios);
  if (!ratios.ok()) return std::move(ratios).error().with_context("cadence.ratios");
  if (c.cadence_mode == "tuned" && c.steps_per_round() == 1)
    return refuse(
        "cadence tuned chooses how many local steps lie between two averages: set local_steps to "
        "the number to begin with, e.g. 10 (with fragments, more than that), or take cadence "
        "speed");
  if (c.cadence_mode == "tuned" && c.cadence_max_steps < c.steps_per_round())
    return refuse("cadence.max_steps " + std::to_string(c.cadence_max_steps) +
                  " is below the steps to begin with, " + std::to_string(c.steps_per_round()) +
                  " (local_steps / fragments)");
  if (!ratios->empty() && c.cadence_mode == "off")
    return refuse("cadence.ratios are given speeds: they need cadence speed or tuned, not off");
  return {};
}

}  // namespace

Coordinator::Options ServerConfig::coordination() const {
  Coordinator::Options out;
  out.mode = cadence_mode == "tuned"   ? Coordinator::Mode::kTuned
             : cadence_mode == "speed" ? Coordinator::Mode::kSpeed
                                       : Coordinator::Mode::kOff;
  out.cadence.initial = steps_per_round();
  out.cadence.most = cadence_max_steps;
  out.cadence.overhead = cadence_overhead;
  out.cadence.dead_zone = cadence_dead_zone;
  out.cadence.max_lead = cadence_max_lead;
  out.divergence = cadence_divergence;
  out.predicts = cadence_guard == "predict";
  if (auto ratios = parse_ratios(cadence_ratios); ratios.ok())
    out.ratios = std::move(ratios).value();
  return out;
}

Status finish(ServerConfig& c) {
  CENTROID_TRY(check_election(c));
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  if (policy.is_elastic() && c.is_peer_to_peer())
    return Error(ErrorCode::kInvalidArgument,
                 "policy " + c.policy + ": with exchange " + c.exchange +
                     " the workers' sums hold a part of everybody, nobody can be left out: take "
                     "exchange star, or policy bsp");
  if (c.round_timeout.count() > 0 && (policy.is_elastic() || c.is_peer_to_peer()))
    return Error(ErrorCode::kInvalidArgument,
                 "round_timeout is for policy bsp with exchange star: policy " + c.policy +
                     " with exchange " + c.exchange +
                     (policy.is_elastic() ? " does not wait for everybody" : " has peer_timeout"));
  CENTROID_TRY(check_local_steps(c));
  CENTROID_TRY(check_cadence(c));
  CENTROID_TRY(check_aggregate(c));
  CENTROID_TRY(check_metrics(c));
  if (const std::string why = why_one_server(c); c.servers > 1 && !why.empty())
    return Error(ErrorCode::kInvalidArgument, "servers " + std::to_string(c.servers) + ": " + why);
  if (const auto tables = parse_tables(c.tables); !tables.ok())
    return Error(tables.error()).with_context("tables");
  CENTROID_TRY(check_codec_down(c));
  if (c.min_workers > c.max_workers)
    return Error(ErrorCode::kInvalidArgument,
                 "min_workers (" + std::to_string(c.min_workers) + ") is above max_workers (" +
                     std::to_string(c.max_workers) + "): raise max_workers or lower min_workers");
  if (c.keep_min_workers > c.max_workers)
    return Error(ErrorCode::kInvalidArgument,
                 "keep_min_workers (" + std::to_string(c.keep_min_workers) +
                     ") is above max_workers (" + std::to_string(c.max_workers) +
                     "): raise max_workers or lower keep_min_workers");
  if (c.optimizer_scale_ratio > 0 && c.local_steps > 1)
    return Error(ErrorCode::kInvalidArgument,
                 "optimizer.scale_ratio is for a gradient every step: with local_steps set the "
                 "workers' inner.scale_ratio");
  if (c.optimizer_scale_ratio > 0 && c.optimizer.name == "ftrl")
    return Error(
        ErrorCode::kInvalidArgument,
        "optimizer ftrl adapts the learning rate by itself: leave optimizer.scale_ratio 0");
  if (auto optimizer = make_optimizer(c.optimizer); !optimizer.ok())
    return std::move(optimizer).error();
  if (c.is_peer_to_peer() && c.apply == "server")
    return Error(ErrorCode::kInvalidArgument,
                 "exchange " + c.exchange +
                     " applies the optimizer on the workers: apply must be worker or auto");
  if (c.is_peer_to_peer() && c.reduce_algorithm != "auto" && c.exchange == "hierarchical")
    return Error(ErrorCode::kInvalidArgument,
                 "exchange hierarchical has an algorithm of its own: leave reduce.algorithm auto");
  if (c.reduce_ring_order != "rank" && c.exchange != "ring")
    return Error(ErrorCode::kInvalidArgument, "reduce.ring_order " + c.reduce_ring_order +
                                                  " is for exchange ring, not " + c.exchange);
  if (c.keeps_journal() && c.is_peer_to_peer())
    return Error(ErrorCode::kInvalidArgument,
                 "journal on: with exchange " + c.exchange +
                     " no gradient goes through the server, there is nothing to write: leave "
                     "journal off and take checkpoint.every_rounds, or exchange star");
  if (c.journal_dir.empty()) c.journal_dir = c.run_dir + "/journal";
  if (c.checkpoint_dir.empty()) c.checkpoint_dir = c.run_dir + "/checkpoints";
  if (c.run_id.empty() && !c.resume) {
    std::random_device entropy;
    static constexpr char kDigits[] = "0123456789abcdef";
    for (int i = 0; i < 12; ++i) c.run_id += kDigits[entropy() % 16];
  }
  if (c.credit_bytes == 0) {
    // A small window keeps waiting chunks in the cache: with 4 MiB instead of 16 MiB the server
    // takes 109 ms of processor time a round instead of 130 (centroid-bench-star --rounds 12
    // --no-memory).
    constexpr std::uint64_t kOne = 4u << 20, kTotal = 128u << 20;
    const std::uint64_t share = std::min(kOne, kTotal / std::max<std::uint64_t>(c.min_workers, 8));
    c.credit_bytes = std::max<std::uint64_t>(2 * c.chunk_bytes, share);
  }
  if (c.credit_bytes < c.chunk_bytes)
    return Error(ErrorCode::kInvalidArgument, "credit_bytes (" + std::to_string(c.credit_bytes) +
                                                  ") must hold at least one chunk (chunk_bytes " +
                                                  std::to_string(c.chunk_bytes) + ")");
  return {};
}

}  // namespace centroid::server
