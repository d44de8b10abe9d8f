#include "tests/simulation/plan.h"

#include <initializer_list>

#include "common/base/random.h"

namespace centroid::simulation {

Plan Plan::draw(std::uint64_t seed) {
  CounterRng random(seed, 1);
  const auto one_of = [&random](std::initializer_list<const char*> all) {
    return std::string(*(all.begin() + random.below(all.size())));
  };
  Plan plan;
  plan.seed = seed;
  plan.workers = 1 + random.below(4);
  plan.shards = random.below(3);
  if (random.below(4) == 0) plan.servers = 2;
  plan.faults = 5 + random.below(6);
  plan.min_workers = 1 + random.below(plan.workers);
  if (random.below(2) == 0) plan.checkpoint_every = 10 + random.below(50);
  if (random.below(2) == 0) {
    plan.policy = one_of({"backup:1", "quorum:1", "quorum:2", "ssp:2", "asp"});
    plan.late = one_of({"drop", "drop", "carry", "damp"});
    if (plan.policy == "asp" || plan.policy == "ssp:2") plan.late = "drop";
  }
  if (random.below(3) == 0) plan.apply = "worker";
  if (random.below(4) == 0) plan.codec = one_of({"bf16", "int8", "topk:0.25"});
  if (random.below(6) == 0) plan.codec_down = one_of({"bf16", "int8"});
  if (plan.codec_down != "f32") plan.apply = "worker";
  if (random.below(4) == 0) plan.optimizer = one_of({"momentum", "adam"});
  if (random.below(3) == 0) plan.rows_clients = 1 + random.below(2);
  CounterRng later(seed, 2);  // of its own, so that the seeds before it stay the same
  if (later.below(4) == 0) plan.meet_peers(later.below(3));
  CounterRng more(seed, 3);
  if (more.below(4) == 0) plan.disk_errors = 1 + more.below(3);
  plan.restores = more.below(6) == 0 && plan.checkpoint_every > 0;
  plan.drains_servers = more.below(6) == 0 && plan.shards > 0;
  CounterRng newest(seed, 4);
  if (newest.below(4) == 0 && plan.optimizer == "sgd") plan.local_steps = 2 + newest.below(3);
  const bool takes_turns = plan.local_steps > 1 && plan.policy != "asp" && plan.policy != "ssp:2";
  if (takes_turns && newest.below(2) == 0) plan.overlap = 1;
  if (takes_turns && plan.late == "drop" && newest.below(2) == 0) {
    plan.fragments = 2;
    plan.local_steps = 4;
  }
  return plan;
}

/// The workers add their gradients among themselves, which excludes much.
void Plan::meet_peers(std::uint64_t choice) {
  exchange = choice == 0 ? "auto" : choice == 1 ? "ring" : "hierarchical";
  servers = 1;
  shards = 0;
  policy = "bsp";
  late = "drop";
  apply = "auto";
  codec_down = "f32";
  rows_clients = 0;  // without a journal their pushes are lost with the server
  if (checkpoint_every == 0) checkpoint_every = 20;
}

Ledger::Rule Plan::rule() const {
  const bool is_complete =
      policy == "bsp" || policy.starts_with("backup") || policy.starts_with("quorum");
  const bool is_exact = is_complete && fragments == 1 && late == "drop" && codec == "f32" &&
                        codec_down == "f32" && optimizer == "sgd";
  if (!is_exact) return Ledger::Rule::kReplicas;
  return policy == "bsp" ? Ledger::Rule::kEachOnce : Ledger::Rule::kWhole;
}

std::string Plan::to_string() const {
  return "seed " + std::to_string(seed) + ": " + std::to_string(workers) + " workers (at least " +
         std::to_string(min_workers) + "), " + std::to_string(servers) + " servers, " +
         std::to_string(shards) + " shard servers, " + std::to_string(rounds) + " rounds, " +
         std::to_string(faults) + " faults, checkpoint every " + std::to_string(checkpoint_every) +
         ", exchange " + exchange + ", policy " + policy + " " + late + ", apply " + apply +
         ", codec " + codec + " and " + codec_down + ", optimizer " + optimizer + ", local steps " +
         std::to_string(local_steps) + " (" + std::to_string(fragments) + " fragments, overlap " +
         std::to_string(overlap) + "), " + std::to_string(rows_clients) + " clients of rows, " +
         std::to_string(disk_errors) + " disk errors" + (restores ? ", restores" : "") +
         (drains_servers ? ", drains" : "");
}

}  // namespace centroid::simulation
