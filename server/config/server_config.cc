#include "server/config/server_config.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/codec/spec.h"
#include "common/optim/local_steps.h"
#include "server/aggregate/round_policy.h"
#include "server/election/etcd_client.h"
#include "server/rows/row_spec.h"

namespace centroid::server {

namespace {

Status check_codec_down(ServerConfig& c) {
  auto parsed = CodecSpec::parse(c.transfer.codec_down);
  if (!parsed.ok()) return std::move(parsed).error().with_context("codec_down");
  c.transfer.codec_down = parsed->to_string();
  if (!c.compresses_results()) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "codec_down " + c.transfer.codec_down + ": " + why);
  };
  if (c.local.fragments > 1 && parsed->scope == Scope::kGlobal)
    return refuse(
        "it selects from all tensors at once, but they arrive in fragments: omit scope=global");
  if (c.is_peer_to_peer())
    return refuse("with exchange " + c.exchange +
                  " no result passes through the server: set codec_down f32, or exchange star");
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

/// Settings of rounds of local steps, and the optimizer that `outer` selects.
Status check_local_steps(ServerConfig& c) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  if (c.local.count == 1 && c.local.inner_rate > 0)
    return refuse("inner_lr is for rounds of local steps: set local_steps, or leave inner_lr 0");
  CENTROID_TRY(use_local_steps({.count = c.local.count,
                                .fragments = c.local.fragments,
                                .overlap = c.local.overlap,
                                .outer = c.local.outer},
                               c.optimizer));
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  if (policy.applies_each() && (c.local.fragments > 1 || c.local.overlap > 0))
    return refuse("policy " + c.policy +
                  ": contributions arrive at different times, so fragments cannot take turns and "
                  "steps cannot overlap: set fragments 1 and overlap 0");
  if (c.local.fragments > 1 && policy.is_elastic() && c.late != "drop")
    return refuse(
        "late " + c.late +
        ": the fragment of a late contribution is not the one of a later round: leave late "
        "drop, or fragments 1");
  return {};
}

Status check_election(ServerConfig& c) {
  if (!c.has_election()) return {};
  const auto is_plain = [](char x) {
    return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '-' ||
           x == '_' || x == '.';
  };
  if (c.identity.cluster.empty() || c.identity.cluster.size() > 128 ||
      !std::ranges::all_of(c.identity.cluster, is_plain))
    return Error(
        ErrorCode::kInvalidArgument,
        "cluster '" + c.identity.cluster + "': expected 1 to 128 letters, digits, - _ and .");
  if (!std::ranges::all_of(c.identity.name, is_plain) || c.identity.name.size() > 128)
    return Error(ErrorCode::kInvalidArgument,
                 "name '" + c.identity.name + "': expected at most 128 letters, digits, - _ and .");
  if (c.etcd.lease.count() % 1000 != 0)
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.lease " + std::to_string(c.etcd.lease.count()) +
                     " ms: etcd counts leases in seconds, use a multiple of 1000");
  CENTROID_ASSIGN(const auto endpoints, parse_etcd_endpoints(c.etcd.endpoints));
  const auto is_secure = [](const std::string& one) { return one.starts_with("https://"); };
  if (c.etcd.certificate.empty() != c.etcd.key.empty())
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.certificate and etcd.key belong together: one is set, the other is not");
  if (!c.etcd.certificate.empty() && !std::ranges::any_of(endpoints, is_secure))
    return Error(ErrorCode::kInvalidArgument,
                 "etcd.certificate is shown to an etcd with TLS: take https:// in etcd.endpoints");
  c.resume = c.leaving.workers_stay = true;
  if (c.run_id.empty()) c.run_id = c.identity.cluster;
  return {};
}

Status check_cadence(const ServerConfig& c) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, why);
  };
  auto ratios = parse_ratios(c.cadence.ratios);
  if (!ratios.ok()) return std::move(ratios).error().with_context("cadence.ratios");
  if (c.cadence.mode == "tuned" && c.steps_per_round() == 1)
    return refuse(
        "cadence tuned chooses how many local steps lie between two averages: set local_steps to "
        "the number to begin with, e.g. 10 (with fragments, more than that), or take cadence "
        "speed");
  if (c.cadence.mode == "tuned" && c.cadence.max_steps < c.steps_per_round())
    return refuse("cadence.max_steps " + std::to_string(c.cadence.max_steps) +
                  " is below the steps to begin with, " + std::to_string(c.steps_per_round()) +
                  " (local_steps / fragments)");
  if (!ratios->empty() && c.cadence.mode == "off")
    return refuse("cadence.ratios are given speeds: they need cadence speed or tuned, not off");
  return {};
}

/// The setting with which all rounds go through the server; empty: none does.
std::string setting_for_star(const ServerConfig& c, const RoundPolicy& policy) {
  if (policy.is_elastic()) return "policy " + c.policy;
  if (c.timeouts.round.count() > 0) return "round_timeout";
  if (c.transfer.codec_down != "f32") return "codec_down " + c.transfer.codec_down;
  if (c.aggregate != "mean") return "aggregate " + c.aggregate;
  if (c.local.weight_by == "tokens") return "weight_by tokens";
  if (c.local.count > 1) return "local_steps " + std::to_string(c.local.count);
  if (c.servers > 1) return "servers " + std::to_string(c.servers);
  if (c.writes_journal()) return "journal.mode on";
  if (c.has_election()) return "etcd.endpoints";
  return c.apply == "server" ? "apply server" : "";
}

/// Of exchange auto: once, for workers keep what they agreed on.
Status resolve_exchange(ServerConfig& c, const RoundPolicy& policy) {
  if (!c.chooses_exchange()) return {};
  std::string setting = setting_for_star(c, policy);
  if (c.automatic.is_resolved && !setting.empty())
    return Error(ErrorCode::kInvalidArgument,
                 setting +
                     " is for exchange star: this job was started with exchange auto, and "
                     "its workers apply the optimizer. Start it with exchange star");
  c.automatic.is_resolved = true;
  if (setting.empty()) return {};
  c.exchange = "star";
  c.automatic.star_for = std::move(setting);
  return {};
}

}  // namespace

Coordinator::Options ServerConfig::coordination() const {
  Coordinator::Options out;
  out.mode = cadence.mode == "tuned"   ? Coordinator::Mode::kTuned
             : cadence.mode == "speed" ? Coordinator::Mode::kSpeed
                                       : Coordinator::Mode::kOff;
  out.cadence.initial = steps_per_round();
  out.cadence.most = cadence.max_steps;
  out.cadence.overhead = cadence.overhead;
  out.cadence.dead_zone = cadence.dead_zone;
  out.cadence.max_lead = cadence.max_lead;
  out.divergence = cadence.divergence;
  out.predicts = cadence.guard == "predict";
  if (auto ratios = parse_ratios(cadence.ratios); ratios.ok())
    out.ratios = std::move(ratios).value();
  return out;
}

Status finish(ServerConfig& c) {
  CENTROID_TRY(check_election(c));
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  CENTROID_TRY(resolve_exchange(c, policy));
  if (policy.is_elastic() && c.is_peer_to_peer())
    return Error(ErrorCode::kInvalidArgument,
                 "policy " + c.policy + ": with exchange " + c.exchange +
                     " the workers' sums contain every member's part, so none can be excluded: use "
                     "exchange star, or policy bsp");
  if (c.timeouts.round.count() > 0 && (policy.is_elastic() || c.is_peer_to_peer()))
    return Error(
        ErrorCode::kInvalidArgument,
        "round_timeout is for policy bsp with exchange star: policy " + c.policy +
            " with exchange " + c.exchange +
            (policy.is_elastic() ? " does not wait for all members" : " has reduce.timeout"));
  CENTROID_TRY(check_local_steps(c));
  CENTROID_TRY(check_cadence(c));
  CENTROID_TRY(check_aggregate(c));
  CENTROID_TRY(check_metrics(c));
  if (const std::string why = why_one_server(c); c.servers > 1 && !why.empty())
    return Error(ErrorCode::kInvalidArgument, "servers " + std::to_string(c.servers) + ": " + why);
  if (const auto tables = parse_tables(c.tables); !tables.ok())
    return Error(tables.error()).with_context("tables");
  CENTROID_TRY(check_codec_down(c));
  if (c.workers.min > c.workers.max)
    return Error(ErrorCode::kInvalidArgument,
                 "min_workers (" + std::to_string(c.workers.min) + ") is above max_workers (" +
                     std::to_string(c.workers.max) + "): raise max_workers or lower min_workers");
  if (c.workers.min_continue > c.workers.max)
    return Error(ErrorCode::kInvalidArgument,
                 "keep_min_workers (" + std::to_string(c.workers.min_continue) +
                     ") is above max_workers (" + std::to_string(c.workers.max) +
                     "): raise max_workers or lower keep_min_workers");
  if (c.optimizer_scale_ratio > 0 && c.local.count > 1)
    return Error(ErrorCode::kInvalidArgument,
                 "lr_scale_ratio is for a gradient every step: with local_steps set the "
                 "workers' inner.lr_scale_ratio");
  if (c.optimizer_scale_ratio > 0 && c.optimizer.name == "ftrl")
    return Error(ErrorCode::kInvalidArgument,
                 "optimizer ftrl adapts the learning rate by itself: leave lr_scale_ratio 0");
  if (auto optimizer = make_optimizer(c.optimizer); !optimizer.ok())
    return std::move(optimizer).error();
  if (c.is_peer_to_peer() && c.apply == "server")
    return Error(ErrorCode::kInvalidArgument,
                 "exchange " + c.exchange +
                     " applies the optimizer on the workers: apply must be worker or auto");
  if (c.is_peer_to_peer() && c.reduce.algorithm != "auto" && c.exchange == "hierarchical")
    return Error(ErrorCode::kInvalidArgument,
                 "exchange hierarchical has an algorithm of its own: leave reduce.algorithm auto");
  if (c.reduce.ring_order != "rank" && c.exchange != "ring" && !c.chooses_exchange())
    return Error(ErrorCode::kInvalidArgument, "reduce.ring_order " + c.reduce.ring_order +
                                                  " is for exchange ring, not " + c.exchange);
  if (c.writes_journal() && c.is_peer_to_peer())
    return Error(ErrorCode::kInvalidArgument,
                 "journal on: with exchange " + c.exchange +
                     " no gradient passes through the server, so there is nothing to write: set "
                     "journal off and checkpoint.every_rounds, or exchange star");
  if (c.journal.dir.empty()) c.journal.dir = c.run_dir + "/journal";
  if (c.checkpoint.dir.empty()) c.checkpoint.dir = c.run_dir + "/checkpoints";
  if (c.run_id.empty() && !c.resume) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::uint64_t bits = random_seed();
    for (int i = 0; i < 12; ++i, bits >>= 4) c.run_id += kDigits[bits % 16];
  }
  if (c.transfer.credit_bytes == 0) {
    // A small window lets waiting chunks stay in the cache: with 4 MiB instead of 16 MiB the server
    // takes 109 ms of processor time a round instead of 130 (centroid-bench-star --rounds 12
    // --no-memory).
    constexpr std::uint64_t kOne = 4u << 20, kTotal = 128u << 20;
    const std::uint64_t share = std::min(kOne, kTotal / std::max<std::uint64_t>(c.workers.min, 8));
    c.transfer.credit_bytes = std::max<std::uint64_t>(2 * c.transfer.chunk_bytes, share);
  }
  if (c.transfer.credit_bytes < c.transfer.chunk_bytes)
    return Error(ErrorCode::kInvalidArgument, "credit_bytes (" +
                                                  std::to_string(c.transfer.credit_bytes) +
                                                  ") must fit at least one chunk (chunk_bytes " +
                                                  std::to_string(c.transfer.chunk_bytes) + ")");
  return {};
}

}  // namespace centroid::server
