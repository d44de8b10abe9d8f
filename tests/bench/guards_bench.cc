// What guards against wrong numbers cost a round: the same cluster with and without, taking turns.
//   centroid-bench-guards [--parameters N] [--workers N] [--turns N] [--block N] [--bar PERCENT]
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/bench_run.h"
#include "tests/bench/star_cluster.h"
#include "tests/bench/turns.h"
#include "tests/bench/verdict.h"

namespace centroid::bench {
namespace {

constexpr double kCompareRounds = 100;  // the default of replica_check_rounds

struct Options {
  std::uint64_t workers = 2, parameters = 5'000'000, turns = 21, block = 8;
  double bar = 0;
};

using Flags = std::vector<std::string>;

struct Guard {
  const char* name;
  std::string exchange, apply, optimizer;
  Flags off, on;
  bool is_of_replicas = false;
};

std::vector<Guard> guards() {
  // Replicas are compared in every round here, and the cost is divided: in 100 rounds the machine's
  // own variation would hide it. Adam with an epsilon below 2^-40 is tried in every round, with one
  // above it in the first round only.
  const Flags never{"--replica-check-rounds", "0"}, always{"--replica-check-rounds", "1"};
  const Flags blind{"--nonfinite", "propagate"}, looks{"--nonfinite", "halt"};
  const Flags bounded{"--epsilon", "1e-12"}, tried{"--epsilon", "1e-13"};
  return {
      {"replicas compared, star", "star", "worker", "momentum", never, always, true},
      {"replicas compared, ring", "ring", "worker", "momentum", never, always, true},
      {"finite numbers, star, sgd on the server", "star", "server", "sgd", blind, looks},
      {"finite numbers, star, adam on the server", "star", "server", "adam", blind, looks},
      {"finite numbers, ring, sgd", "ring", "worker", "sgd", blind, looks},
      {"trial in every round, star, adam", "star", "worker", "adam", bounded, tried},
      {"trial in every round, ring, adam", "ring", "worker", "adam", bounded, tried},
  };
}

/// Of the rounds with the guard by those without, a ratio a turn.
PairedRatio measure(const Guard& guard, const Options& options, double* seconds) {
  std::vector<Contender> sides;
  for (const Flags* const flags : {&guard.off, &guard.on}) {
    ClusterSettings settings;
    settings.workers = options.workers;
    settings.parameters = options.parameters;
    settings.exchange = guard.exchange;
    settings.apply = guard.apply;
    settings.optimizer = guard.optimizer;
    settings.server_flags = *flags;
    sides.push_back(make_star_cluster(settings));
  }
  std::vector<double> ratios, without;
  for (std::uint64_t turn = 0; turn <= options.turns; ++turn) {
    double median[2] = {};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t side = turn % 2 == 0 ? i : 1 - i;  // each is first in half of the turns
      median[side] =
          quantile(sides[side].run(static_cast<std::uint32_t>(options.block)).rounds, 0.5);
    }
    if (turn == 0) continue;
    ratios.push_back(median[1] / median[0]);
    without.push_back(median[0]);
  }
  *seconds = quantile(without, 0.5);
  return paired_ratio(ratios);
}

int run(const Options& options) {
  std::printf("%llu workers, %llu parameters, %llu turns of %llu rounds each\n",
              static_cast<unsigned long long>(options.workers),
              static_cast<unsigned long long>(options.parameters),
              static_cast<unsigned long long>(options.turns),
              static_cast<unsigned long long>(options.block));
  std::printf("%-42s %12s   %s\n", "", "without, ms", "with / without (95 % interval)");
  int missed = 0;
  for (const Guard& guard : guards()) {
    double seconds = 0;
    const PairedRatio ratio = measure(guard, options, &seconds);
    std::printf("%-42s %12.2f   %.3f (%.3f to %.3f)\n", guard.name, 1e3 * seconds, ratio.median,
                ratio.low, ratio.high);
    if (guard.is_of_replicas) {
      const auto percent = [](double of) { return 100 * (of - 1) / kCompareRounds; };
      std::printf("%-42s %12s   %.3f %% (%.3f to %.3f)\n", "  every 100 rounds, of the time", "",
                  percent(ratio.median), percent(ratio.low), percent(ratio.high));
      missed += verdict(guard.name, percent(ratio.median), Bar::kAtMost, options.bar, "%");
    }
    std::fflush(stdout);
  }
  return missed > 0 ? 1 : 0;
}

void add_fields(config::Schema& schema, Options& options) {
  schema.field("workers", &options.workers,
               {.text = "worker processes", .unit = "workers", .min = 1, .max = kMaxMembers});
  schema.field("parameters", &options.parameters,
               {.text = "float32 parameters of the model", .min = 10});
  schema.field("turns", &options.turns,
               {.text = "pairs of blocks; one more warms up", .min = 6, .max = 1000});
  schema.field("block", &options.block,
               {.text = "rounds before the other side has its turn",
                .unit = "rounds",
                .min = 1,
                .max = kMaxBlockRounds});
  schema.field("bar", &options.bar,
               {.text = "most of a round's time that the comparison of replicas may take, in "
                        "percent; else exit status 1; 0: no bar",
                .min = 0.0});
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<Options>(argc, argv, "centroid-bench-guards",
                             "What guards against wrong numbers cost a round.", add_fields, run);
}
