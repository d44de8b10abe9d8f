#include "server/aggregate/robust.h"
#include "server/aggregate/round_policy.h"
#include "server/config/server_config.h"

/// Settings of how contributions are combined.
namespace centroid::server {

namespace {
constexpr std::uint64_t kMostMixed = 256;  // workers: seconds for a chunk of 1 MiB
}  // namespace

void register_aggregate(config::Schema& s, ServerConfig& c) {
  s.field(
      "aggregate", &c.aggregate,
      {.text =
           "exchange star, policy bsp: how contributions are combined: mean = weighted by samples; "
           "median = per coordinate; trimmed_mean:F = mean per coordinate without the F largest "
           "and the F smallest, which tolerates F faulty workers of at least 2F + 1; "
           "nnm_trimmed_mean:F = that after nearest-neighbour mixing, for dissimilar data"});
}

Status check_aggregate(const ServerConfig& c) {
  CENTROID_ASSIGN(const AggregateRule rule, AggregateRule::parse(c.aggregate));
  if (c.local.weight_by == "tokens" && c.is_peer_to_peer())
    return Error(ErrorCode::kInvalidArgument, "weight_by tokens: with exchange " + c.exchange +
                                                  " the workers begin to add before their tokens "
                                                  "are counted: use samples, or exchange star");
  if (rule.is_mean()) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "aggregate " + c.aggregate + ": " + why);
  };
  if (rule.mixes() && c.workers.max > kMostMixed)
    return refuse(
        "each chunk of a worker is compared with those of all others: set max_workers to at most " +
        std::to_string(kMostMixed));
  if (c.is_peer_to_peer())
    return refuse("with exchange " + c.exchange +
                  " the workers add among themselves, and no process has all contributions: use "
                  "exchange star, or aggregate mean");
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  if (policy.applies_each())
    return refuse("with policy " + c.policy +
                  " each contribution is a round of its own, there is nothing to set it against: "
                  "take policy bsp, or aggregate mean");
  if (policy.is_elastic())
    return refuse("with policy " + c.policy +
                  " the slowest are left out, and false contributions are fast: take policy bsp, "
                  "or aggregate mean");
  if (c.nonfinite == "propagate")
    return refuse("NaN has no place in an order: set nonfinite to halt or skip");
  if (c.local.weight_by == "steps" || c.local.weight_by == "tokens")
    return refuse("every worker has the same weight, whatever it reports about its " +
                  c.local.weight_by + " is not believed: leave weight_by");
  if (c.workers.min < rule.least())
    return refuse("it needs " + std::to_string(rule.least()) +
                  " workers, with fewer one false contribution does harm: set min_workers, which "
                  "is " +
                  std::to_string(c.workers.min));
  return {};
}

RoundPolicy policy_of(const ServerConfig& config) {
  RoundPolicy policy;
  CENTROID_CHECK(parse_policy(config.policy, config.late, policy).ok());  // `finish` has checked it
  policy.nonfinite = config.nonfinite == "halt"   ? NonFinitePolicy::kHalt
                     : config.nonfinite == "skip" ? NonFinitePolicy::kSkip
                                                  : NonFinitePolicy::kPropagate;
  policy.is_joint = config.is_peer_to_peer();
  return policy;
}
}  // namespace centroid::server
